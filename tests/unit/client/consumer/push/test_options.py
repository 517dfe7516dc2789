from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pyromq.client.consumer.process_queue import Limits
from pyromq.client.consumer.push.options import Order, PushOptions, PushSettings
from pyromq.client.errors import OptionError
from pyromq.protocol.wire.bodies import MessageModel


def test_own_options_are_split_from_those_of_every_client() -> None:
    settings, common = PushSettings.split(PushOptions(max_handlers=3, namespace="tenant"))
    assert (settings.max_handlers, common) == (3, {"namespace": "tenant"})
    # Broadcasting finds its offsets under the same client id.
    broadcasting = PushOptions(model=MessageModel.BROADCASTING)
    assert PushSettings.split(broadcasting)[1] == {"instance_name": "DEFAULT"}
    named = PushOptions(model=MessageModel.BROADCASTING, instance_name="two")
    assert PushSettings.split(named)[1] == {"instance_name": "two"}


@pytest.mark.parametrize(
    ("options", "lists", "size"),
    [
        ({}, False, 1),
        ({"batch_size": 1}, False, 1),
        ({"batch_size": 8}, True, 8),
        ({"takes_lists": True}, True, 32),
        ({"takes_lists": True, "batch_size": 1}, True, 1),
        ({"takes_lists": True, "pull_batch_size": 5}, True, 5),
    ],
)
def test_messages_per_call(options: Any, lists: bool, size: int) -> None:
    settings = PushSettings(**options)
    assert (settings.hands_out_lists, settings.messages_per_call) == (lists, size)


def test_reconsume_limit() -> None:
    assert PushSettings().reconsume_limit == 16
    assert PushSettings(order=Order.ORDERLY).reconsume_limit == 0x7FFFFFFF
    assert PushSettings(order=Order.ORDERLY, max_reconsume_times=2).reconsume_limit == 2
    assert PushSettings(max_reconsume_times=0).reconsume_limit == 0


def test_limits_of_a_topic_are_divided_among_its_queues() -> None:
    settings = PushSettings(max_cached_messages_of_topic=100, max_cached_bytes_of_topic=3)
    assert settings.limits(8) == Limits(12, 1, 2000)
    assert PushSettings(order=Order.ORDERLY).limits(8) == Limits(1000, 100 * 1024 * 1024, None)


@pytest.mark.parametrize(
    "options",
    [
        {"max_handlers": 0},
        {"pull_batch_size": 0},
        {"max_cached_messages": 0},
        {"max_cached_bytes_of_topic": 0},
        {"batch_size": -1},
        {"batch_size": 1025},
        {"batch_size": 2, "takes_lists": False},
        {"consume_timeout": 0.0},
        {"suspend": float("nan")},
        {"commit_interval": -1.0},
        {"close_grace": -1.0},
        {"pull_interval": float("nan")},
        {"max_reconsume_times": -2},
        {"start_from": "first"},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        PushSettings(**options)


def test_a_time_to_start_from() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert PushSettings(start_from=moment).start_from == moment
