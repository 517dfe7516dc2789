"""Special cases; `test_headers` checks the fields and types of every class."""

from __future__ import annotations

import pytest

from pyromq.protocol.wire.header_codec import HeaderError
from pyromq.protocol.wire.headers_admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    QueryConsumeQueueRequestHeader,
    RegisterMessageFilterClassRequestHeader,
    ResetOffsetRequestHeader,
)


def test_a_reset_without_a_time_is_rejected() -> None:
    # Java would use time 0 and reset the group to the first message.
    with pytest.raises(HeaderError, match="ResetOffsetRequestHeader: field timestamp is missing"):
        ResetOffsetRequestHeader.decode({"topic": "t", "group": "g", "isForce": "true"})


def test_irregular_wire_names() -> None:
    header = RegisterMessageFilterClassRequestHeader("g", "t", "C", 7)
    assert header.encode()["classCRC"] == "7"
    direct = ConsumeMessageDirectlyResultRequestHeader("g", client_id="c")
    assert direct.encode() == {"consumerGroup": "g", "clientId": "c"}


def test_primitive_numbers_default_to_zero() -> None:
    assert QueryConsumeQueueRequestHeader.decode({"topic": "t"}).count == 0
