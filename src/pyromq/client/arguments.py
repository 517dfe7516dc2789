"""Check arguments, so that a wrong type or number fails in the call that passed it.

Each function raises an OptionError that names the argument, its value and the expectation.
Constructors and methods of every client call them, on any thread. Messages have checks of their
own (`message`), since every send runs those.
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

#: The largest int and long of RocketMQ's headers.
INT_MAX = 0x7FFFFFFF
LONG_MAX = 0x7FFFFFFFFFFFFFFF

_Choice = TypeVar("_Choice", bound=Enum)


def check_count(name: str, value: object, least: int = 1, most: int = INT_MAX) -> None:
    """Check a whole number from `least` to `most`; numpy's integers count."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise refusal(name, value, "expected a whole number")
    number = int(value)
    if number < least:
        raise OptionError(f"{name}={value}: must be at least {least}")
    if number > most:
        raise OptionError(f"{name}={value}: must be at most {most}")


def check_seconds(name: str, value: object, *, may_be_zero: bool = False) -> None:
    """Check a positive number of seconds, or a non-negative one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(name, value, "expected a number of seconds")
    if not isfinite(value):
        raise OptionError(f"{name}={value}: must be a finite number of seconds")
    if value < 0 or (value == 0 and not may_be_zero):
        least = "at least" if may_be_zero else "greater than"
        raise OptionError(f"{name}={value}: must be {least} 0 seconds")


def check_flag(name: str, value: object) -> None:
    """Check True or False."""
    if not isinstance(value, bool):
        raise refusal(name, value, "expected True or False")


def check_text(name: str, value: object) -> None:
    """Check a str."""
    if not isinstance(value, str):
        raise refusal(name, value, "expected a str")


def check_path(name: str, value: object) -> None:
    """Check a path."""
    if not isinstance(value, str | PathLike):
        raise refusal(name, value, "expected a path")


def check_choice(name: str, value: object, choices: type[_Choice]) -> None:
    """Check a member of an enum."""
    if not isinstance(value, choices):
        members = ", ".join(f"{choices.__name__}.{choice.name}" for choice in choices)
        raise refusal(name, value, f"expected one of {members}")


def check_callable(name: str, value: object) -> None:
    """Check a callable."""
    if not callable(value):
        raise refusal(name, value, "expected a function")


def check_queue(queue: object, name: str = "queue") -> None:
    """Check a queue."""
    if not isinstance(queue, MessageQueue):
        raise refusal(name, queue, "expected a MessageQueue")


def check_queues(queues: Iterable[Any]) -> list[MessageQueue]:
    """Check queues and return them as a list."""
    if isinstance(queues, str | MessageQueue) or not isinstance(queues, Iterable):
        raise refusal("queues", queues, "expected a list of MessageQueue")
    found = list(queues)
    for queue in found:
        check_queue(queue)
    return found


def check_time(name: str, value: object) -> None:
    """Check a point in time."""
    if not isinstance(value, datetime):
        raise refusal(name, value, "expected a datetime")


def check_offset(offset: object, name: str = "offset") -> None:
    """Check a queue offset."""
    check_count(name, offset, 0, LONG_MAX)


def refusal(name: str, value: object, expectation: str) -> OptionError:
    """Return the exception for an argument of the wrong type."""
    return OptionError(f"{name}={value!r:.100}: {expectation}, got {type(value).__name__}")
