"""Ports for servers that bind them seconds later."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support import apache_rocketmq
from tests.support.apache_rocketmq import ApacheRocketMQError, free_port


def test_no_two_callers_get_the_same_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apache_rocketmq, "_RESERVED_PORTS", tmp_path / "ports")
    choices = iter([20_000, 20_000, 20_001, 20_007])
    monkeypatch.setattr(random, "choice", lambda ports: next(choices))
    monkeypatch.setattr(apache_rocketmq, "_bindable", lambda port: True)
    assert free_port(-2, 1) == 20_000
    assert free_port(-2, 1) == 20_007
    long_ago = time.time() - 1000
    for file in (tmp_path / "ports").iterdir():
        os.utime(file, (long_ago, long_ago))
    choices = iter([20_000])
    assert free_port(-2, 1) == 20_000
    choices = iter([20_000] * 200)
    with pytest.raises(ApacheRocketMQError, match="no free port"):
        free_port(-2, 1)
