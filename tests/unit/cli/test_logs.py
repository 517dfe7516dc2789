from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from pyromq.base.log_lines import MAX_LINES_OF_A_KIND, RARELY
from pyromq.cli import logs
from pyromq.cli.logs import LogFormat, logging_to_files, logging_to_stderr
from tests.support.patience import wait_until

NAMES = ("store.log", "namesrv.log", "broker.log")


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def test_each_component_has_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert lines("broker.log")[-1] == "    ValueError: torn"
    assert not any("not important" in line for line in lines("broker.log"))
    errors = capsys.readouterr().err
    assert "a broker is gone" in errors
    assert "torn" in errors
    assert "served" not in errors


def test_a_full_file_is_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1000, 3):
        for number in range(100):
            logging.getLogger("pyromq.broker").info(f"line {number}")

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broker.log",
        "broker.log.1",
        "broker.log.2",
    ]
    assert (tmp_path / "broker.log").read_text().endswith("line 99\n")
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_a_component_without_a_file_logs_to_the_last_one(tmp_path: Path) -> None:
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


def lines_of(tmp_path: Path) -> list[str]:
    return [
        line.partition(" - ")[2] or line
        for line in (tmp_path / "broker.log").read_text().splitlines()
    ]


def test_no_name_can_forge_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's own handlers would keep the surrogate for the report, which xdist cannot send.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    forged = "t\n2026-11-17 00:00:00,000 INFO    pyromq.broker - topic x deleted\x1b[2J\ud800"
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1 << 20, 1):
        logger = logging.getLogger("pyromq.broker")
        logger.warning("topic %s refused", forged)
        try:
            raise ValueError(forged)
        except ValueError:
            logger.exception("request failed")

    lines = (tmp_path / "broker.log").read_text().splitlines()
    assert sum(line.startswith("20") for line in lines) == 2
    assert r"t\n2026-11-17 00:00:00,000" in lines[0]
    assert r"\x1b[2J\ud800 refused" in lines[0]
    assert all(line.startswith("    ") for line in lines[2:])
    assert "\x1b" not in capsys.readouterr().err


def test_long_values_and_tracebacks_are_cut(tmp_path: Path) -> None:
    def deep(depth: int) -> None:
        # Not one function that calls itself: repeated lines are left out by Python.
        exec(
            f"def other_{depth}(): deep({depth - 1})\nother_{depth}()", {"deep": deep}
        ) if depth else 1 / 0

    with logging_to_files("INFO", tmp_path, ("broker.log",), 1 << 20, 1):
        logger = logging.getLogger("pyromq.nameserver")
        logger.info("KV configuration: %s set to %s", "key", "v" * 20_000_000)
        logger.info("settings %s", [1] * 10_000)
        try:
            deep(100)
        except ZeroDivisionError:
            logger.exception("failed")

    lines = lines_of(tmp_path)
    assert lines[0].endswith("vvv... (20000000 characters)")
    assert len(lines[0]) < 1200
    assert len(lines[1]) < 4200
    assert "ZeroDivisionError" in lines[-1]
    assert 90 < len(lines) < 110


def test_a_burst_becomes_a_few_lines_and_a_count(tmp_path: Path) -> None:
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1 << 20, 1):
        logger = logging.getLogger("pyromq.broker")
        for number in range(5000):
            logger.warning("request %d failed: %s", number, "bad")
            logger.warning("refused %d", number, extra=RARELY)
            if number == 4000:
                logger.warning("something else happened: %s", "here")
                logger.warning("request %d failed: %s", 7, "other", extra={"kind": "other"})

    lines = lines_of(tmp_path)
    assert len(lines) == MAX_LINES_OF_A_KIND + 1 + 2 + 2
    assert lines[0] == "request 0 failed: bad"
    assert lines[1] == "refused 0"
    assert "something else happened: here" in lines
    assert "request 7 failed: other" in lines
    assert sorted(line.replace("last 1 s", "last 0 s") for line in lines[-2:]) == [
        "4,950 similar lines dropped in the last 0 s: request %d failed: %s",
        "4,999 similar lines dropped in the last 0 s: refused %d",
    ]


def test_the_count_is_logged_even_if_no_other_line_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PERIOD_SECONDS", 0.05)
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1 << 20, 1):
        for _ in range(3):
            logging.getLogger("pyromq.broker").warning("refused", extra=RARELY)
        wait_until(lambda: any("similar lines dropped" in line for line in lines_of(tmp_path)))


def test_debug_lines_are_all_written(tmp_path: Path) -> None:
    with logging_to_files("DEBUG", tmp_path, ("broker.log",), 1 << 20, 1):
        for _ in range(200):
            logging.getLogger("pyromq.broker").debug("looked at")

    assert len(lines_of(tmp_path)) == 200


def test_lines_on_stderr_are_escaped_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        with logging_to_stderr("INFO"):
            for _ in range(200):
                logging.getLogger("pyromq.broker").info("topic %s", "a\nb")
    finally:
        root.handlers = before
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].endswith(r"INFO    pyromq.broker - topic a\nb")
    assert len(lines) == MAX_LINES_OF_A_KIND + 1
    assert "150 similar lines dropped" in lines[-1]


def json_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_json_lines_in_files_and_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's handlers would keep the lone surrogate, which xdist cannot report.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    before = datetime.now(UTC)
    with logging_to_files("INFO", tmp_path, NAMES, 1 << 20, 3, LogFormat.JSON):
        logging.getLogger("pyromq.store.flush").info("flushed %d of %s", 7, "a\nb\u2028c\ud800")
        try:
            raise ValueError("torn\nand forged")
        except ValueError:
            logging.getLogger("pyromq.broker").exception("request failed")
    (stored,) = json_lines(tmp_path / "store.log")
    assert {key: stored[key] for key in ("level", "logger", "thread", "message")} == {
        "level": "INFO",
        "logger": "pyromq.store.flush",
        "thread": "MainThread",
        "message": "flushed 7 of a\\nb\\u2028c\\ud800",
    }
    assert "exception" not in stored
    when = datetime.fromisoformat(stored["time"])
    assert before - timedelta(seconds=1) < when <= datetime.now(UTC)
    (failed,) = json_lines(tmp_path / "broker.log")
    assert failed["message"] == "request failed"
    assert failed["exception"].endswith("ValueError: torn\n    and forged")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line) == failed


def test_a_burst_of_json_lines_ends_with_their_number(tmp_path: Path) -> None:
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1 << 20, 1, LogFormat.JSON):
        for number in range(MAX_LINES_OF_A_KIND + 5):
            logging.getLogger("pyromq.broker").info("line %d of %s", number, "x" * 5000)
    lines = json_lines(tmp_path / "broker.log")
    assert len(lines) == MAX_LINES_OF_A_KIND + 1
    assert "5 similar lines dropped" in lines[-1]["message"]
    assert all(len(line["message"]) < 4200 for line in lines)


def test_json_lines_on_stderr_alone(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        with logging_to_stderr("info", LogFormat.JSON):
            logging.getLogger("pyromq.nameserver").info("broker %s left", "a")
    finally:
        root.handlers = handlers
    assert json.loads(capfd.readouterr().err)["message"] == "broker a left"


def test_rotated_files_are_compressed(tmp_path: Path) -> None:
    with logging_to_files("INFO", tmp_path, ("broker.log",), 1000, 3, compress=True):
        for number in range(100):
            logging.getLogger("pyromq.broker").info(f"line {number}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broker.log",
        "broker.log.1.gz",
        "broker.log.2.gz",
    ]
    text = "".join(
        gzip.decompress((tmp_path / f"broker.log.{number}.gz").read_bytes()).decode()
        for number in (2, 1)
    )
    text += (tmp_path / "broker.log").read_text()
    numbers = [int(line.rsplit(" ", 1)[1]) for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 100))
    assert len(numbers) > 30
