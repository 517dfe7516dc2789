"""Settings of a raft node.

Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyromq.base.networks import Network
from pyromq.base.sizes import MIB
from pyromq.raft.member import Settings
from pyromq.tls.server import ServerTls

#: Bytes of pushes to one peer without an answer. They must pass within the second after which the
#: core repeats them, and heartbeats wait behind them.
MAX_BYTES_IN_FLIGHT: Final = 4 * MIB


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
    #: The address to listen on: all interfaces, as in Java.
    listen_host: str = "0.0.0.0"  # noqa: S104
    #: Where connections to the port may come from; empty if from anywhere.
    allowed_peers: tuple[Network, ...] = ()
    #: Encrypts connections between nodes, as tls.replication.mode says; None if they are plain.
    tls: ServerTls | None = None
    #: Other values of the core's `Settings`, for tests.
    core: dict[str, Any] = field(default_factory=dict)

    def core_settings(self) -> Settings:
        """Return the settings of the core."""
        return Settings(
            group=self.group,
            self_id=self.self_id,
            peers=tuple(self.peers),
            preferred_leaders=self.preferred_leaders,
            batch_push=self.batch_push,
            flush_before_ack=self.flush_before_ack,
            **{"max_bytes_in_flight": MAX_BYTES_IN_FLIGHT, **self.core},
        )
