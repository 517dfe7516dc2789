from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from pyromq.client import arguments
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.errors import OptionError
from pyromq.protocol.wire.bodies import MessageQueue

QUEUE = MessageQueue("t", "b", 0)


@pytest.mark.parametrize(
    ("check", "value", "text"),
    [
        (arguments.check_count, 0, "x=0: must be at least 1"),
        (arguments.check_count, 2**31, "x=2147483648: must be at most 2147483647"),
        (arguments.check_count, True, "x=True: expected a whole number, got bool"),
        (arguments.check_count, 1.0, "x=1.0: expected a whole number, got float"),
        (arguments.check_count, "1", "x='1': expected a whole number, got str"),
        (arguments.check_seconds, 0, "x=0: must be greater than 0 seconds"),
        (arguments.check_seconds, -1.5, "x=-1.5: must be greater than 0 seconds"),
        (arguments.check_seconds, nan, "x=nan: must be a finite number of seconds"),
        (arguments.check_seconds, inf, "x=inf: must be a finite number of seconds"),
        (arguments.check_seconds, "3s", "x='3s': expected a number of seconds, got str"),
        (arguments.check_seconds, True, "x=True: expected a number of seconds, got bool"),
        (arguments.check_flag, 1, "x=1: expected True or False, got int"),
        (arguments.check_text, b"a", "x=b'a': expected a str, got bytes"),
        (arguments.check_callable, None, "x=None: expected a function, got NoneType"),
    ],
)
def test_bad_values_are_refused_with_a_reason(check: Any, value: object, text: str) -> None:
    with pytest.raises(OptionError) as raised:
        check("x", value)
    assert str(raised.value) == text


def test_good_values_are_accepted() -> None:
    arguments.check_count("x", 1)
    arguments.check_count("x", 0, 0)
    arguments.check_count("x", np.int64(3))
    arguments.check_count("x", 2**40, most=arguments.LONG_MAX)
    arguments.check_seconds("x", 0.001)
    arguments.check_seconds("x", 0, may_be_zero=True)
    arguments.check_flag("x", False)
    arguments.check_text("x", "")
    arguments.check_callable("x", print)
    arguments.check_choice("x", StartFrom.FIRST, StartFrom)
    arguments.check_queue(QUEUE)
    arguments.check_offset(2**62)
    assert arguments.check_queues(iter([QUEUE])) == [QUEUE]


def test_choices_are_named() -> None:
    with pytest.raises(OptionError, match=r"expected one of StartFrom\.FIRST, StartFrom\.LAST"):
        arguments.check_choice("x", "first", StartFrom)


@pytest.mark.parametrize("queues", ["t", QUEUE, 5, ["t"], [None]])
def test_a_value_that_is_not_a_list_of_queues_is_refused(queues: Any) -> None:
    with pytest.raises(OptionError, match="MessageQueue"):
        arguments.check_queues(queues)


@pytest.mark.parametrize("offset", [-1, 1.0, None, 2**63])
def test_a_value_that_is_not_an_offset_is_refused(offset: object) -> None:
    with pytest.raises(OptionError, match="offset="):
        arguments.check_offset(offset)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(OptionError) as raised:
        arguments.check_flag("x", "y" * 10_000)
    assert len(str(raised.value)) < 200
