from __future__ import annotations

from pyromq.client.results import STATUS_BY_CODE, SendStatus
from pyromq.protocol.wire.codes import ResponseCode


def test_every_status_is_found_by_its_response_code() -> None:
    assert STATUS_BY_CODE[0] is SendStatus.SEND_OK
    assert STATUS_BY_CODE[ResponseCode.SLAVE_NOT_AVAILABLE] is SendStatus.SLAVE_NOT_AVAILABLE
    assert set(STATUS_BY_CODE.values()) == set(SendStatus)
