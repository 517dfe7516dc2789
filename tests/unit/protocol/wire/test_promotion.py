from __future__ import annotations

import pytest

from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.wire.promotion import (
    PromoteBrokerRequestHeader,
    PromotionCheck,
    PromotionReport,
)


def test_header() -> None:
    assert PromoteBrokerRequestHeader.decode({}) == PromoteBrokerRequestHeader()
    header = PromoteBrokerRequestHeader("SYNC_MASTER", force=True)
    assert header.encode() == {"role": "SYNC_MASTER", "force": "true"}
    assert PromoteBrokerRequestHeader.decode(header.encode()) == header


def test_report() -> None:
    report = PromotionReport(
        "broker-a", True, "ASYNC_MASTER", 1, 123, [PromotionCheck("role", True, "a replica")]
    )
    assert report.encode() == (
        b'{"brokerName":"broker-a","checks":[{"detail":"a replica","name":"role","passed":true}],'
        b'"logEnd":123,"promoted":true,"replicaId":1,"role":"ASYNC_MASTER"}'
    )
    assert PromotionReport.decode(report.encode()) == report
    with pytest.raises(BodyError, match=r"PromotionReport\.logEnd is missing"):
        PromotionReport.decode(b'{"brokerName":"broker-a"}')
