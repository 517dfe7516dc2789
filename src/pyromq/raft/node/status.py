"""The state of a raft node, for operators.

Pure; called on the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyromq.raft.core import Core
from pyromq.raft.log import RaftLog
from pyromq.raft.member import Role
from pyromq.raft.messages import NONE
from pyromq.raft.network.peers import LinkState, Peer
from pyromq.raft.node.settings import NodeSettings


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What this node knows of another one."""

    node_id: str
    address: str
    connected: bool
    #: "pyromq" (binary pushes), "DLedger" (JSON), or "unknown" while not connected.
    kind: str
    #: The leader's view: the state of its pushes, and the last entry known to be there.
    state: str | None
    watermark: int | None
    lag: int | None
    #: Seconds since anything arrived from it, or None.
    last_contact: float | None


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """The state of a node."""

    group: str
    self_id: str
    address: str
    role: Role
    term: int
    leader: str | None
    begin_index: int
    end_index: int
    committed_index: int
    flushed_index: int
    begin_position: int
    end_position: int
    committed_position: int
    flushed_position: int
    #: Reason of the last change of role, and its time in seconds since 1970.
    reason: str
    changed_at: float
    peers: tuple[PeerStatus, ...]


def status_of(
    settings: NodeSettings,
    address: str,
    core: Core | None,
    log: RaftLog,
    peers: Iterable[Peer],
    *,
    last_change: tuple[str, float],
    now: float,
) -> RaftStatus:
    """Return the state of a node; `last_change` is the reason and the time, `now` the loop's.

    Without a core, the node has not been started.
    """
    followers = core.followers if core else {}
    found = []
    for peer in peers:
        follower = followers.get(peer.node_id)
        found.append(
            PeerStatus(
                node_id=peer.node_id,
                address=peer.address,
                connected=peer.state is LinkState.OPEN,
                kind=peer.kind.value,
                state=follower.state.name if follower else None,
                watermark=follower.watermark if follower else None,
                lag=log.end_index - follower.watermark if follower else None,
                last_contact=None if peer.heard_at is None else now - peer.heard_at,
            )
        )
    return RaftStatus(
        group=settings.group,
        self_id=settings.self_id,
        address=address,
        role=core.role if core else Role.CANDIDATE,
        term=core.term if core else NONE,
        leader=core.leader if core else None,
        begin_index=log.begin_index,
        end_index=log.end_index,
        committed_index=log.committed_index,
        flushed_index=log.flushed_index,
        begin_position=log.begin_position,
        end_position=log.written,
        committed_position=log.committed_position,
        flushed_position=log.flushed,
        reason=last_change[0],
        changed_at=last_change[1],
        peers=tuple(found),
    )
