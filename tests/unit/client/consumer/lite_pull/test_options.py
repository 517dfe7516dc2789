from __future__ import annotations

from dataclasses import fields
from datetime import datetime

import pytest

from pyromq.client.consumer.lite_pull.options import LitePullOptions, LitePullSettings
from pyromq.client.consumer.process_queue import Limits
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.errors import OptionError
from pyromq.client.options import ClientOptions
from pyromq.protocol.wire.bodies import MessageModel


def test_own_options_are_split_from_those_of_every_client() -> None:
    settings, common = LitePullSettings.split(
        {"max_span": 7, "namespace": "tenant", "start_from": StartFrom.FIRST}, "g"
    )
    assert (settings.max_span, settings.start_from) == (7, StartFrom.FIRST)
    assert common == {"namespace": "tenant"}
    assert settings.limits == Limits(1000, 100 * 1024 * 1024, 7)


def test_every_option_has_a_setting_of_the_same_name() -> None:
    own = LitePullOptions.__annotations__.keys() - ClientOptions.__annotations__.keys()
    assert own == {field.name for field in fields(LitePullSettings)}


def test_broadcasting_keeps_the_client_id() -> None:
    settings, common = LitePullSettings.split({"model": MessageModel.BROADCASTING}, "g")
    assert settings.is_broadcasting
    assert common == {"instance_name": "DEFAULT"}
    _, common = LitePullSettings.split(
        {"model": MessageModel.BROADCASTING, "instance_name": "mine"}, "g"
    )
    assert common == {"instance_name": "mine"}


@pytest.mark.parametrize(
    "options",
    [
        {"commit_interval": 0},
        {"pull_batch_size": -1},
        {"max_cached_messages": 0},
        {"max_cached_bytes": 0},
        {"max_span": 0},
        {"max_cached_in_all": 0},
        {"start_from": "first"},
        {"model": MessageModel.BROADCASTING},  # and no group
    ],
)
def test_impossible_options_are_refused(options: LitePullOptions) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"{name}="):
        LitePullSettings.split(options, None)


def test_a_time_is_a_start() -> None:
    when = datetime(2026, 11, 1)
    assert LitePullSettings(start_from=when).start_from == when
