"""The note about a truncation in progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft.format import Truncation
from pyromq.raft.truncation_file import TruncationFile
from pyromq.store.results import StoreError


def test_a_truncation_is_noted_until_it_is_done(tmp_path: Path) -> None:
    file = TruncationFile(tmp_path)
    assert file.load() is None
    truncation = Truncation(4, 812, rebuild=False)
    file.begin(truncation)
    assert TruncationFile(tmp_path).load() == truncation
    file.end()
    assert file.load() is None


def test_a_damaged_note_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "truncation").write_bytes(b"nextIndex=x")
    with pytest.raises(StoreError, match="restore or remove"):
        TruncationFile(tmp_path).load()
