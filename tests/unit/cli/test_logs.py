from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pyromq.cli.logs import logging_to_files

NAMES = ("store.log", "namesrv.log", "broker.log")


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def test_each_part_has_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_files("info", tmp_path / "logs", NAMES, 1 << 20, 3):
        logging.getLogger("pyromq.store.flush").info("flushed %d", 7)
        logging.getLogger("pyromq.nameserver.server").warning("a broker is gone")
        logging.getLogger("pyromq.broker.broker").info("served")
        logging.getLogger("pyromq.remoting.server").debug("not important")
        try:
            raise ValueError("torn")
        except ValueError:
            logging.getLogger("asyncio").exception("a task failed")

    def lines(name: str) -> list[str]:
        return (tmp_path / "logs" / name).read_text().splitlines()

    (stored,) = lines("store.log")
    assert stored.endswith("INFO    pyromq.store.flush - flushed 7")
    (gone,) = lines("namesrv.log")
    assert gone.endswith("a broker is gone")
    assert lines("broker.log")[0].endswith("served")
    assert lines("broker.log")[-1] == "ValueError: torn"
    assert not any("not important" in line for line in lines("broker.log"))
    errors = capsys.readouterr().err
    assert "a broker is gone" in errors
    assert "torn" in errors
    assert "served" not in errors


def test_a_file_that_is_full_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1000, 3):
        for number in range(100):
            logging.getLogger("pyromq.broker").info("line %d", number)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broker.log",
        "broker.log.1",
        "broker.log.2",
    ]
    assert (tmp_path / "broker.log").read_text().endswith("line 99\n")
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_without_a_file_of_its_own_a_part_logs_to_the_last_one(tmp_path: Path) -> None:
    with logging_to_files("INFO", tmp_path, ("namesrv.log",), 1 << 20, 1):
        logging.getLogger("pyromq.store").info("here")

    assert "here" in (tmp_path / "namesrv.log").read_text()


def test_lines_after_the_end_go_nowhere(tmp_path: Path) -> None:
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1 << 20, 1):
        pass
    logging.getLogger("pyromq").info("too late")

    assert (tmp_path / "broker.log").read_text() == ""


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(click.ClickException, match="--log-dir") as caught,
        logging_to_files("INFO", tmp_path / "file", ("broker.log",), 1 << 20, 1),
    ):
        pass
    assert str(tmp_path / "file" / "broker.log") in caught.value.message
