"""One node of a raft group: joins the core, the log, the vote file and the network on one loop.

The owner starts and stops the log, writes entries to it while this node leads
(`append_refusal`, `RaftLog.append_bodies`, then `appended`), and learns everything else through
its `NodeListener`.

Runs on the loop; the flush thread is its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyromq.raft.log import RaftLog
from pyromq.raft.member import Role
from pyromq.raft.messages import Code


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of a node."""

    group: str
    self_id: str
    #: Host and port of every node, this one too; port 0 of the own address takes a free one.
    peers: dict[str, tuple[str, int]]
    #: The directory of the vote file: Java's `<root>/dledger-<id>`.
    directory: Path
    preferred_leaders: tuple[str, ...] = ()
    batch_push: bool = False
    flush_before_ack: bool = False
    #: The address to listen on; by default all interfaces, as in Java.
    listen_host: str = "0.0.0.0"  # noqa: S104
    #: Other values of the core's `Settings`, for tests.
    core: dict[str, Any] = field(default_factory=dict)


class NodeListener(Protocol):
    """Learns what happens to a node; called on the loop, in order."""

    def role_changed(self, role: Role, term: int, leader: str | None, reason: str) -> None:
        """Take note of a new role, term or leader."""

    def leader_ready(self, term: int) -> None:
        """Take note that a quorum holds everything that this leader's log had."""

    def committed(self, index: int) -> None:
        """Take note that entries up to `index` are committed; the log knows it already."""

    def committed_lost(self, index: int, committed: int) -> None:
        """Rebuild what came from entries behind `index`: a leader removed them."""

    def failed(self, reason: str) -> None:
        """Stop the broker: the log cannot be trusted any more, or an fsync failed."""


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


class RaftNode:
    """A member of a group."""

    def __init__(
        self,
        settings: NodeSettings,
        log: RaftLog,
        listener: NodeListener,
        *,
        generator: random.Random | None = None,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Listen, load the vote, and take part in elections. The log has been started."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Leave the group: close all connections. The log stays open."""
        raise NotImplementedError

    @property
    def role(self) -> Role:
        """Return the role."""
        raise NotImplementedError

    @property
    def term(self) -> int:
        """Return the current term."""
        raise NotImplementedError

    @property
    def leader(self) -> str | None:
        """Return the leader of the current term, if it is known."""
        raise NotImplementedError

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that this node listens on."""
        raise NotImplementedError

    def append_refusal(self) -> Code | None:
        """Return why no entry may be written to the log now, or None if this node leads."""
        raise NotImplementedError

    def appended(self) -> None:
        """Push the entries of the current term that the owner wrote to the log."""
        raise NotImplementedError

    async def transfer(self, node_id: str) -> Code:
        """Hand leadership to another node; return the outcome."""
        raise NotImplementedError

    def status(self) -> RaftStatus:
        """Return the state of this node and, as leader, of its followers."""
        raise NotImplementedError
