"""Runs RocketMQ's own mqadmin, many commands in one process, and makes their output comparable.

Called by test_mqadmin.py; every call blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.interop.client_driver import ClientDriver
from tests.interop.java_programs import (
    INTEROP_SOURCES,
    JVM_OPTIONS,
    TOOLS,
    compiled,
    javac_or_skip,
)
from tests.support.apache_rocketmq import java_or_skip

#: What differs by its nature, and the word that takes its place.
_MASKS = (
    (re.compile(r"(?:yyyy|\d{4})-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[,:.]\d{3})?"), "TIME"),
    (re.compile(r"(?:/[\w.@#-]+){2,}/?"), "PATH"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+@\S+"), "CLIENT"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+:\d+"), "ADDRESS"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+"), "HOST"),
    (re.compile(r"\b[0-9A-F]{24,}\b"), "ID"),
    # Not the fraction of a number, which may have as many digits.
    (re.compile(r"(?<![\w.])\d{13}\b"), "TIMESTAMP"),
    (re.compile(r"(?<=TPS: )\d+\.\d+"), "RATE"),
    # What Java prints of an object, and its client's count of those who trace.
    (re.compile(r"@[0-9a-f]{1,8}\b"), "@OBJECT"),
    (re.compile(r"(?<=PRODUCE-|CONSUME-)\d+"), "COUNT"),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:E-?\d+)?")


class Outcome(NamedTuple):
    """What became of one command."""

    out: str
    #: The exceptions that it ended with, the outer one first; nothing for a good end.
    error: str
    #: Whether it ended by itself.
    over: bool


def mqadmin(*options: str) -> ClientDriver:
    """A process that runs commands; files that they write by relative paths go with it.

    Options are the JVM's.
    """
    java_or_skip()
    javac_or_skip()
    return ClientDriver(
        [
            "java",
            *JVM_OPTIONS,
            "-Duser.home={home}",
            "-Drocketmq.client.logRoot={home}",
            *options,
            "-cp",
            compiled(INTEROP_SOURCES / "mqadmin", TOOLS),
            "RunAdmin",
        ]
    )


def run(admin: ClientDriver, namesrv: str, words: Sequence[str], **credentials: Any) -> Outcome:
    """Run one command, signed with `accessKey` and `secretKey` if they are given."""
    return Outcome(**admin.call("run", namesrv=namesrv, words=words, **credentials))


def fields(text: str) -> list[str]:
    """What stands before the colons of an output of names and values."""
    return [line.partition(" : ")[0].partition(": ")[0] for line in comparable(text)]


_TRACE_PRODUCER = "_INNER_TRACE_PRODUCER-"


def comparable(text: str, *, numbers: bool = False) -> list[str]:
    """The lines of an output without what differs by nature, and with `numbers` without any.

    Sorted, as most of mqadmin's lines come out of hash tables; blanks only separate.
    """
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    if numbers:
        text = _NUMBER.sub("N", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    # Java's clients trace by producers of their own, which brokers hear of in their own time.
    return sorted(line for line in lines if line and _TRACE_PRODUCER not in line)
