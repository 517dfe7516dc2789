from __future__ import annotations

from pyromq.metrics.security import SecurityMetrics
from tests.support.metrics import collected


async def test_refusals_and_certificates() -> None:
    metrics = SecurityMetrics(lambda: {"signature": 3}, lambda: {"server": 1.8e9})
    scrape = await collected(metrics.collect)
    assert scrape.value("pyromq_acl_refusals_total", reason="signature") == 3
    assert scrape.value("pyromq_tls_certificate_expiry_timestamp_seconds", use="server") == 1.8e9


async def test_absent_without_access_control_and_tls() -> None:
    assert (await collected(SecurityMetrics(dict, dict).collect)).samples == []
