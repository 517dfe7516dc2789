"""Settings of a raft group: RocketMQ's keys for DLedger.

`MessageStoreConfig` inherits these fields, on top of those of replication, and checks them with
`check_raft`. RocketMQ's names lack a d in some places; they are what its users write. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyromq.base.networks import Network, parse_networks
from pyromq.base.settings import ConfigError, setting, shown
from pyromq.store.replication_settings import ReplicationSettings

_NODE_ID: Final = re.compile(r"[A-Za-z](0|[1-9][0-9]{0,8})", re.ASCII)
_EXAMPLE: Final = "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911"


@dataclass(frozen=True, slots=True)
class RaftSettings(ReplicationSettings):
    """Group, nodes and rules of a raft group."""

    enable_dleger_commit_log: bool = setting(
        "enableDLegerCommitLog",
        False,
        "Be a member of a raft group: its nodes elect a leader, which takes messages, and a send "
        "is acknowledged when most nodes have its message. brokerRole and brokerId are ignored: "
        "the leader is the master.",
    )
    dleger_group: str | None = setting(
        "dLegerGroup", None, "The name of the raft group, usually that of the broker."
    )
    dleger_peers: str | None = setting(
        "dLegerPeers",
        None,
        "All nodes of the raft group with the addresses of their raft ports, such as "
        f"`{_EXAMPLE}`. Equal on all nodes.",
    )
    dleger_self_id: str | None = setting(
        "dLegerSelfId",
        None,
        "The id of this node among dLegerPeers: a letter and a number. As a follower, the broker "
        "has the number + 1 as its id.",
    )
    preferred_leader_id: str | None = setting(
        "preferredLeaderId",
        None,
        "Ids of nodes, separated by semicolons, that take over from any other leader when their "
        "logs are up to date.",
    )
    enable_batch_push: bool = setting(
        "enableBatchPush",
        False,
        "Push several entries in one request to nodes that are RocketMQ's own. Nodes of pyromq "
        "always get batches.",
    )
    is_enable_batch_push: bool = setting(
        "isEnableBatchPush", False, "The same as enableBatchPush: RocketMQ saves it by this name."
    )
    store_path_dledger_commit_log: str | None = setting(
        "storePathDLedgerCommitLog",
        None,
        "Keep the entries of the raft group in this directory. The default is "
        "`dledger-<dLegerSelfId>/data` below storePathRootDir.",
        path=True,
    )
    dleger_flush_before_ack: bool = setting(
        "dLegerFlushBeforeAck",
        False,
        "Count a node's copy of a message only when it is fsynced, so that no acknowledged message "
        "is lost if most nodes lose power. With false, a copy in memory counts, as in RocketMQ.",
    )

    dleger_allowed_peers: str | None = setting(
        "dLegerAllowedPeers",
        None,
        "Accept connections to the raft port only from these addresses or networks, such as "
        "10.0.0.7,10.1.0.0/16, separated by commas. The default accepts any address.",
    )

    def check_raft(self) -> None:
        """Raise ConfigError for values with which a node cannot start."""
        parse_networks("dLegerAllowedPeers", self.dleger_allowed_peers)
        if not self.enable_dleger_commit_log:
            return
        for key, value in (
            ("dLegerGroup", self.dleger_group),
            ("dLegerPeers", self.dleger_peers),
            ("dLegerSelfId", self.dleger_self_id),
        ):
            if not value:
                raise ConfigError(f"{key} is not set: enableDLegerCommitLog=true needs it")
        peers = self.raft_peers
        if self.raft_id not in peers:
            raise ConfigError(
                f"dLegerSelfId={shown(self.raft_id)}: expected one of dLegerPeers, "
                f"{', '.join(peers)}"
            )
        for node in self.preferred_leaders:
            if node not in peers:
                raise ConfigError(
                    f"preferredLeaderId={shown(self.preferred_leader_id or '')}: {shown(node)} is "
                    f"none of dLegerPeers, {', '.join(peers)}"
                )

    @property
    def raft_id(self) -> str:
        """The id of this node; empty outside of a group."""
        return self.dleger_self_id or ""

    @property
    def raft_broker_id(self) -> int:
        """The broker's id while it follows."""
        return int(self.raft_id[1:]) + 1

    @property
    def raft_peers(self) -> dict[str, tuple[str, int]]:
        """Host and raft port of each node, by its id. Raises ConfigError."""
        peers: dict[str, tuple[str, int]] = {}
        for part in (self.dleger_peers or "").split(";"):
            node, _, address = part.strip().partition("-")
            host, _, port = address.rpartition(":")
            if not _NODE_ID.fullmatch(node) or not host or not _is_port(port) or node in peers:
                raise ConfigError(
                    f"dLegerPeers={shown(self.dleger_peers or '')}: expected nodes such as "
                    f"{_EXAMPLE}; {shown(part)} is not, or its id appears twice"
                )
            peers[node] = (host, int(port))
        return peers

    @property
    def allowed_raft_peers(self) -> tuple[Network, ...]:
        """The networks that may connect to the raft port; empty if all may."""
        return parse_networks("dLegerAllowedPeers", self.dleger_allowed_peers)

    @property
    def preferred_leaders(self) -> tuple[str, ...]:
        """The nodes of preferredLeaderId."""
        names = (self.preferred_leader_id or "").split(";")
        return tuple(name.strip() for name in names if name.strip())

    @property
    def pushes_batches(self) -> bool:
        """Whether RocketMQ's own nodes get batches."""
        return self.enable_batch_push or self.is_enable_batch_push


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535
