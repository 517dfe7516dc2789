"""Fields and types of every class are checked in `test_headers`; here, what is special."""

from __future__ import annotations

import pytest

from pyromq.protocol.wire.header_codec import HeaderError
from pyromq.protocol.wire.headers_admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    QueryConsumeQueueRequestHeader,
    RegisterMessageFilterClassRequestHeader,
    ResetOffsetRequestHeader,
)


def test_a_reset_without_a_time_is_refused() -> None:
    # Java would take it for time 0 and send the group back to the first message.
    with pytest.raises(HeaderError, match="ResetOffsetRequestHeader: field timestamp is missing"):
        ResetOffsetRequestHeader.decode({"topic": "t", "group": "g", "isForce": "true"})


def test_wire_names_off_the_rule() -> None:
    header = RegisterMessageFilterClassRequestHeader("g", "t", "C", 7)
    assert header.encode()["classCRC"] == "7"
    direct = ConsumeMessageDirectlyResultRequestHeader("g", client_id="c")
    assert direct.encode() == {"consumerGroup": "g", "clientId": "c"}


def test_primitive_numbers_default_to_zero() -> None:
    assert QueryConsumeQueueRequestHeader.decode({"topic": "t"}).count == 0
