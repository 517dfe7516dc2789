"""Raft groups: the state of their nodes, and the transfer of leadership.

Only pyromq's brokers answer; `pyromq raft status` shows what is known about RocketMQ's own nodes as
well. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    UnreadableAnswerError,
    UnsupportedRequestError,
)
from pyromq.admin.session import Area
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.leadership import TransferLeadershipRequestHeader

#: A transfer waits until the new leader has all entries.
_TRANSFER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class RaftNodeState:
    """A node of a raft group, as it describes itself."""

    group: str
    broker_name: str
    #: The address that clients use.
    broker: str
    node: str
    #: The address of its raft port.
    address: str
    #: LEADER, FOLLOWER or CANDIDATE.
    role: str
    term: int
    #: The node that it follows, or None.
    leader: str | None
    begin_index: int
    end_index: int
    committed_index: int
    #: Why it has its role.
    reason: str | None


class Raft(Area):
    """Raft groups."""

    async def nodes(self, broker_name: str | None = None) -> list[RaftNodeState]:
        """Return the nodes of one broker name, or of all, that are registered and answer."""
        info = await self._session.cluster_info()
        brokers = {
            address: name
            for name, data in sorted(info.broker_addr_table.items())
            for address in data.broker_addrs.values()
            if broker_name in (None, name)
        }

        async def ask(address: str) -> RaftNodeState | None:
            try:
                answer = await self._session.ask(address, RequestCode.GET_REPLICATION_STATUS)
            except AdminError as error:
                if isinstance(error, UnsupportedRequestError) or broker_name is None:
                    return None
                raise
            return _node(address, brokers[address], answer.body)

        found = await self._session.on_each("reading the state", brokers, ask)
        return sorted(
            (node for node in found.values() if node is not None),
            key=lambda node: (node.group, node.node),
        )

    async def transfer(self, broker_name: str, node: str) -> None:
        """Hand the leadership of a broker's raft group to another node, such as n1."""
        nodes = await self.nodes(broker_name)
        if not nodes:
            raise NotFoundError(f"no node of a raft group is registered as {broker_name!r}")
        leader = next((each for each in nodes if each.role == "LEADER"), None)
        if leader is None:
            raise AdminError(f"group {nodes[0].group} has no leader: start a quorum of its nodes")
        if leader.node == node:
            return
        await self._session.ask(
            leader.broker,
            RequestCode.TRANSFER_LEADERSHIP,
            TransferLeadershipRequestHeader(node),
            request_timeout=_TRANSFER_SECONDS,
        )


def _node(address: str, broker_name: str, body: bytes) -> RaftNodeState | None:
    """Decode a broker's figures; None if it is not in a raft group."""
    try:
        raft: Mapping[str, Any] | None = orjson.loads(body).get("raft")
        if raft is None:
            return None
        return RaftNodeState(
            raft["group"],
            broker_name,
            address,
            raft["selfId"],
            raft["address"],
            raft["role"],
            raft["term"],
            raft["leader"],
            raft["beginIndex"],
            raft["endIndex"],
            raft["committedIndex"],
            raft["reason"],
        )
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UnreadableAnswerError(address, error) from error
