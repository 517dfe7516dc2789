"""Runs RocketMQ's own mqadmin, many commands in one process, and makes their output comparable.

Called by test_mqadmin.py; every call blocks.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.interop.java_programs import JVM_OPTIONS, compiled
from tests.support.apache_rocketmq import VERSION

_SOURCES = Path(__file__).parent / "java" / "mqadmin"
_TOOLS = f"org.apache.rocketmq:rocketmq-tools:{VERSION}"
_SECONDS = 180.0

#: What differs by its nature, and the word that takes its place.
_MASKS = (
    (re.compile(r"(?:yyyy|\d{4})-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[,:.]\d{3})?"), "TIME"),
    (re.compile(r"(?:/[\w.@#-]+){2,}/?"), "PATH"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+@\S+"), "CLIENT"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+:\d+"), "ADDRESS"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+"), "HOST"),
    (re.compile(r"\b[0-9A-F]{24,}\b"), "ID"),
    (re.compile(r"\b\d{13}\b"), "TIMESTAMP"),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:E-?\d+)?")


class Outcome(NamedTuple):
    """What became of one command."""

    out: str
    #: The exceptions that it ended with, the outer one first; None for a good end.
    error: str | None
    #: Whether it ended by itself.
    over: bool


def run(directory: Path, namesrv: str, commands: Sequence[Sequence[str]]) -> list[Outcome]:
    """Run commands one after the other; files that they write by relative paths go there."""
    listing = directory / "commands"
    listing.write_text("".join(json.dumps(list(words)) + "\n" for words in commands))
    done = subprocess.run(
        [
            "java",
            *JVM_OPTIONS,
            f"-Duser.home={directory}",
            f"-Drocketmq.client.logRoot={directory}",
            "-cp",
            compiled(_SOURCES, _TOOLS),
            "RunAdmin",
            namesrv,
            str(listing),
        ],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    outcomes = [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(outcomes) == len(commands)
    return outcomes


def fields(text: str) -> list[str]:
    """What stands before the colons of an output of names and values."""
    return [line.partition(" : ")[0].partition(": ")[0] for line in comparable(text)]


def comparable(text: str, *, numbers: bool = False) -> list[str]:
    """The lines of an output without what differs by nature, and with `numbers` without any.

    Sorted, as most of mqadmin's lines come out of hash tables; blanks only separate.
    """
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    if numbers:
        text = _NUMBER.sub("N", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return sorted(line for line in lines if line)
