"""The names of the fields of a send: they are those of the headers."""

from __future__ import annotations

import pytest

from pyromq.protocol.wire.headers import (
    Header,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from pyromq.protocol.wire.send_fields import LONG_NAMES, SHORT_NAMES, SendFields

VALUES = {
    "producer_group": "1",
    "topic": "2",
    "default_topic": "3",
    "default_topic_queue_nums": 4,
    "queue_id": 5,
    "sys_flag": 6,
    "born_timestamp": 7,
    "flag": 8,
    "properties": "9",
    "reconsume_times": 10,
    "batch": True,
}


@pytest.mark.parametrize(
    ("names", "header"),
    [(LONG_NAMES, SendMessageRequestHeader), (SHORT_NAMES, SendMessageRequestHeaderV2)],
)
def test_names(names: SendFields, header: type[Header]) -> None:
    encoded = header(**VALUES).encode()

    for attribute, name in names._asdict().items():
        value = VALUES[attribute]
        assert encoded[name] == ("true" if value is True else str(value))
