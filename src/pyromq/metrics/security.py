"""Metrics of access control and TLS, which brokers and NameServers share.

Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyromq.metrics.family import counter, gauge
from pyromq.metrics.page import Page, Steps, label_text

ACL_REFUSALS: Final = counter(
    "pyromq_acl_refusals_total",
    "Requests that access control refused since the start; absent without aclEnable.",
    ("reason",),
)
CERTIFICATE_EXPIRY: Final = gauge(
    "pyromq_tls_certificate_expiry_timestamp_seconds",
    "When the certificate of the ports (server) or of own connections (client) expires, in seconds "
    "since 1970; absent without TLS.",
    ("use",),
)

FAMILIES: Final = (ACL_REFUSALS, CERTIFICATE_EXPIRY)


class SecurityMetrics:
    """Refusals and certificates of a server."""

    def __init__(
        self,
        refusals: Callable[[], Mapping[str, int]],
        expiry: Callable[[], Mapping[str, float]],
    ) -> None:
        """`refusals` returns counts by reason, `expiry` times by use of the certificate."""
        self._refusals = refusals
        self._expiry = expiry

    def collect(self, page: Page) -> Steps:
        """Write the families of this module."""
        page.add(
            ACL_REFUSALS,
            *((label_text(reason=reason), count) for reason, count in self._refusals().items()),
        )
        page.add(
            CERTIFICATE_EXPIRY,
            *((label_text(use=use), expires) for use, expires in self._expiry().items()),
        )
        yield None
