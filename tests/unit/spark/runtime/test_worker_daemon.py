"""The output of PySpark's daemon; tests/spark/test_commands.py starts it."""

from __future__ import annotations

import traceback

import pytest
from pyspark import daemon

from pyromq.spark.runtime import worker_daemon


def test_a_closed_socket_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def manage() -> None:
        for error in (BrokenPipeError("gone"), ConnectionResetError("gone"), ValueError("wrong")):
            try:
                raise error
            except Exception:
                vars(daemon)["traceback"].print_exc()

    monkeypatch.setattr(daemon, "traceback", traceback)
    monkeypatch.setattr(daemon, "manager", manage)
    worker_daemon.main()
    printed = capsys.readouterr().err
    assert "ValueError: wrong" in printed
    assert printed.count("Traceback") == 1
