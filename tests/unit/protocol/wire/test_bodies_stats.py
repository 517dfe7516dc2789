from __future__ import annotations

import pytest

from pyromq.protocol.wire.bodies import BodyError
from pyromq.protocol.wire.bodies_stats import BrokerStatsData, BrokerStatsItem

#: As RocketMQ 4.9.7 answers.
TEXT = (
    b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},'
    b'"statsHour":{"avgpt":1.0,"sum":3,"tps":0.005},'
    b'"statsMinute":{"avgpt":1.5,"sum":3,"tps":0.3}}'
)


def test_statistics_are_written_as_java_writes_them() -> None:
    data = BrokerStatsData(BrokerStatsItem(3, 0.3, 1.5), BrokerStatsItem(3, 0.005, 1.0))

    assert data.encode() == TEXT
    assert BrokerStatsData.decode(TEXT) == data


def test_numbers_may_be_whole_or_text_but_nothing_else() -> None:
    assert BrokerStatsItem.decode(b'{"sum":1,"tps":2,"avgpt":"2.5"}') == BrokerStatsItem(
        1, 2.0, 2.5
    )
    for wrong in (b"true", b'"much"', b"[]", b"{}"):
        with pytest.raises(BodyError, match="tps"):
            BrokerStatsItem.decode(b'{"tps":' + wrong + b"}")
