from __future__ import annotations

from typing import get_type_hints

import pytest

from pyromq.client.errors import OptionError
from pyromq.client.options import ClientOptions
from pyromq.client.producer.accumulator import Batching
from pyromq.client.producer.options import ProducerOptions, ProducerSettings


def test_every_own_option_is_a_setting_of_the_same_type() -> None:
    own = {
        name: kind
        for name, kind in get_type_hints(ProducerOptions).items()
        if name not in get_type_hints(ClientOptions)
    }
    assert own == get_type_hints(ProducerSettings)


def test_options_are_split_into_own_and_common() -> None:
    batching = Batching(linger=1.0)
    settings, common = ProducerSettings.split(
        {"retries": 5, "batching": batching, "namespace": "tenant", "trace": True}
    )
    assert settings == ProducerSettings(retries=5, batching=batching)
    assert common == {"namespace": "tenant", "trace": True}


def test_a_bad_option_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="max_in_flight=0: must be at least 1"):
        ProducerSettings.split({"max_in_flight": 0})
