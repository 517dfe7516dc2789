"""TRANSFER_LEADERSHIP: the request that moves the leadership of a raft group to another node.

Not RocketMQ's: `pyromq raft transfer` and our broker only. Pure.
"""

from __future__ import annotations

from pyromq.protocol.wire.header_codec import Header, header_class


@header_class
class TransferLeadershipRequestHeader(Header):
    """TRANSFER_LEADERSHIP, sent to the broker that leads."""

    #: The id of the node that is to lead, such as n1.
    node_id: str
