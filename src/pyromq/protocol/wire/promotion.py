"""PROMOTE_BROKER: the request that turns a replica into a master, and the report of its checks.

Not RocketMQ's: `pyromq broker promote` and our broker only. The response has the report in its
body, whether the broker was promoted (SUCCESS) or refused (SYSTEM_ERROR). Pure.
"""

from __future__ import annotations

from dataclasses import field

from pyromq.protocol.java.wire_types import Int64
from pyromq.protocol.wire.body_codec import Body, body_class
from pyromq.protocol.wire.header_codec import Header, header_class


@header_class
class PromoteBrokerRequestHeader(Header):
    """PROMOTE_BROKER."""

    #: ASYNC_MASTER or SYNC_MASTER.
    role: str = "ASYNC_MASTER"
    #: Whether to promote the broker although its master seems to be alive.
    force: bool = False


@body_class
class PromotionCheck(Body):
    """A condition of a promotion, and what was found."""

    name: str
    passed: bool
    detail: str


@body_class
class PromotionReport(Body):
    """The outcome of a request to promote a broker."""

    broker_name: str
    promoted: bool
    #: The role that the broker has now.
    role: str
    #: The id that it had as a replica, which is free now for the old master; 0 if it was a master.
    replica_id: Int64
    #: End of the broker's log. Messages of the old master above it are lost.
    log_end: Int64
    checks: list[PromotionCheck] = field(default_factory=list)
