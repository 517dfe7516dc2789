"""GET_REPLICATION_STATUS: how far replicas are behind, or how a replica is doing.

Not RocketMQ's; `pyromq broker replicas` sends it. The body is JSON (`BrokerReplication.figures`).
The same figures are in the runtime info, as text (`runtime_figures`), for `mqadmin brokerStatus`.

Runs on the loop.
"""

from __future__ import annotations

from typing import Any

import orjson

from pyromq.acl import classification as access
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand


class ReplicationAdminHandlers:
    """Reports on replication."""

    def __init__(self, parts: BrokerParts) -> None:
        self._figures = parts.replication_figures

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.GET_REPLICATION_STATUS, access.PEER, self.status, is_query=True)
        )

    def status(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_REPLICATION_STATUS: return the figures as JSON."""
        return request.answer(body=orjson.dumps(self._figures()))


def runtime_figures(figures: dict[str, Any]) -> dict[str, str]:
    """Return the figures as entries of the runtime info; RocketMQ has none of its own."""
    if not figures:
        return {}
    table = {"brokerRole": figures["role"], "brokerId": str(figures["brokerId"])}
    raft = figures.get("raft")
    if raft is not None:
        return {
            **table,
            "raftGroup": raft["group"],
            "raftNode": raft["selfId"],
            "raftRole": raft["role"],
            "raftLeader": raft["leader"] or "",
            "raftTerm": str(raft["term"]),
            "raftEndIndex": str(raft["endIndex"]),
            "raftCommittedIndex": str(raft["committedIndex"]),
        }
    following = figures["following"]
    if following is not None:
        return {
            **table,
            "replicationMaster": following["master"] or "",
            "replicationConnected": "true" if following["is_connected"] else "false",
        }
    replicas = figures["replicas"]
    table["replicatedOffset"] = str(figures["replicated"])
    table["replicaCount"] = str(len(replicas))
    for number, replica in enumerate(replicas, 1):
        table[f"replica{number}"] = (
            f"[address: {replica['address']}, kind: {replica['kind']}, at: {replica['acked']}, "
            f"lagBytes: {replica['lag_bytes']}, lagMillis: {replica['lag_millis']}]"
        )
    return table
