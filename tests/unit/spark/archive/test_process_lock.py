from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pyromq.spark.archive.process_lock import LockHeldError, process_lock


def test_a_second_holder_learns_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    with process_lock(path):
        assert path.read_text() == f"{holder}\n"
        with pytest.raises(LockHeldError) as caught, process_lock(path):
            pass
        assert str(caught.value) == holder
    with process_lock(path):
        pass
