from __future__ import annotations

from pyromq.spark.replay.options import Filters, Order, ReplayOptions


def test_a_time_slice_narrows_the_filters() -> None:
    assert Filters().within(10, 20) == Filters(since=10, until=20)
    assert Filters(since=5, until=15).within(10, 20) == Filters(since=10, until=15)
    assert Filters("a = 1", ("t",)).within(1, 2) == Filters("a = 1", ("t",), 1, 2)


def test_orders_have_names_for_users() -> None:
    assert [order.value for order in Order] == ["none", "queues", "keys"]


def test_speed_may_change_when_a_replay_resumes() -> None:
    settings = ReplayOptions(order=Order.KEYS).settings()
    assert ReplayOptions(order=Order.KEYS, rate=5, pace=2.0, part_messages=9).settings() == settings
    assert ReplayOptions(order=Order.KEYS, shift=None).settings() != settings
