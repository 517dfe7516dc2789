from __future__ import annotations

import pytest

from pyromq.broker.state.capacity import Capacity


def test_a_full_table_names_its_setting() -> None:
    limit = 10
    capacity = Capacity("topics", "maxTopics", lambda: limit)
    assert capacity.fault(9) is None
    assert capacity.fault(10) == "the broker has 10 topics, limit 10 (maxTopics)"
    assert capacity.fault(11) == "the broker has 11 topics, limit 10 (maxTopics)"
    limit = 20
    assert capacity.fault(11) is None


def test_a_table_that_fills_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    capacity = Capacity("topics", "maxTopics", lambda: 100)
    for count in range(79):
        capacity.note(count)
    assert caplog.messages == []
    for count in (80, 81, 99, 100, 76, 80):
        capacity.note(count)
    (line,) = caplog.messages
    assert line.startswith("table nearly full: 80 topics, 80 % of the limit 100; ")
    assert line.endswith("or raise maxTopics")
    capacity.note(74)
    capacity.note(90)
    assert len(caplog.messages) == 2


def test_a_limit_of_zero_refuses_everything() -> None:
    capacity = Capacity("topics", "maxTopics", lambda: 0)
    assert capacity.fault(0) is not None
    capacity.note(0)
