"""Checks of arguments: wrong types and absurd numbers are refused where they are given.

Each raises OptionError that names the argument and its value, and says what is needed. Called
by constructors and methods of every client, on any thread; the producer's own path to the wire
checks messages by itself (`message`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from math import isfinite
from numbers import Integral
from os import PathLike
from typing import Any, TypeVar

from pyromq.client.errors import OptionError
from pyromq.protocol.wire.bodies import MessageQueue

#: The largest numbers that fit where RocketMQ's headers have an int, and a long.
INT_MAX = 0x7FFFFFFF
LONG_MAX = 0x7FFFFFFFFFFFFFFF

_Choice = TypeVar("_Choice", bound=Enum)


def check_count(name: str, value: object, least: int = 1, most: int = INT_MAX) -> None:
    """Refuse what is not a whole number from `least` to `most`; numpy's are some, too."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise refusal(name, value, "a whole number is needed")
    number = int(value)
    if number < least:
        raise OptionError(f"{name}={value}: at least {least} is needed")
    if number > most:
        raise OptionError(f"{name}={value}: at most {most} is possible")


def check_seconds(name: str, value: object, *, may_be_zero: bool = False) -> None:
    """Refuse what is not a number of seconds above 0, or from 0 on."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(name, value, "a number of seconds is needed")
    if not isfinite(value):
        raise OptionError(f"{name}={value}: a finite number of seconds is needed")
    if value < 0 or (value == 0 and not may_be_zero):
        least = "0 or more seconds are possible" if may_be_zero else "more than 0 is needed"
        raise OptionError(f"{name}={value}: {least}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise refusal(name, value, "True or False is needed")


def check_text(name: str, value: object) -> None:
    """Refuse what is not a str."""
    if not isinstance(value, str):
        raise refusal(name, value, "a str is needed")


def check_path(name: str, value: object) -> None:
    """Refuse what names no file."""
    if not isinstance(value, str | PathLike):
        raise refusal(name, value, "a path is needed")


def check_choice(name: str, value: object, choices: type[_Choice]) -> None:
    """Refuse what is not a member of an enum."""
    if not isinstance(value, choices):
        members = ", ".join(f"{choices.__name__}.{choice.name}" for choice in choices)
        raise refusal(name, value, f"one of {members} is needed")


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise refusal(name, value, "a function is needed")


def check_queue(queue: object, name: str = "queue") -> None:
    """Refuse what is not a queue."""
    if not isinstance(queue, MessageQueue):
        raise refusal(name, queue, "a MessageQueue is needed")


def check_queues(queues: Iterable[Any]) -> list[MessageQueue]:
    """Return the queues as a list; refuse what is not a collection of them."""
    if isinstance(queues, str | MessageQueue) or not isinstance(queues, Iterable):
        raise refusal("queues", queues, "a list of MessageQueue is needed")
    found = list(queues)
    for queue in found:
        check_queue(queue)
    return found


def check_time(name: str, value: object) -> None:
    """Refuse what is not a point in time."""
    if not isinstance(value, datetime):
        raise refusal(name, value, "a datetime is needed")


def check_offset(offset: object, name: str = "offset") -> None:
    """Refuse what is not a place in a queue."""
    check_count(name, offset, 0, LONG_MAX)


def refusal(name: str, value: object, need: str) -> OptionError:
    """Return the exception for an argument of the wrong type."""
    return OptionError(f"{name}={value!r:.100}: {need}, got {type(value).__name__}")
