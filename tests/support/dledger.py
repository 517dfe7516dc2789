"""Nodes of the real DLedger 0.3.1.2, in one JVM that is driven from a test.

    with DLedger() as java:
        java.start("n1", peers, directory)
        java.state("n1")["role"]                  # LEADER, FOLLOWER or CANDIDATE

The jar is the one that RocketMQ 4.9.7's broker comes with. Called on one thread; every call blocks.
Nothing of pyromq is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.interop.client_driver import ClientDriver
from tests.interop.java_programs import BROKER, INTEROP_SOURCES, JVM_OPTIONS, compiled

GROUP: Final = "interop"
DATA_FILE: Final = 1 << 16
INDEX_FILE: Final = 1024 * 32
#: Times in milliseconds, shorter than the defaults, so that tests need not wait for elections.
HEARTBEAT, MIN_VOTE, MAX_VOTE = 500, 100, 300

Peers = Mapping[str, tuple[str, int]]


def peers_text(peers: Peers) -> str:
    """Return a list of peers as `dLegerPeers` has it."""
    return ";".join(f"{node}-{host}:{port}" for node, (host, port) in peers.items())


class DLedger(ClientDriver):
    """A process with any number of Java nodes."""

    def __init__(self, *options: str) -> None:
        class_path = compiled(INTEROP_SOURCES / "ledger", BROKER)
        super().__init__(["java", *JVM_OPTIONS, *options, "-cp", class_path, "LedgerNodes"])

    def start(self, node: str, peers: Peers, directory: Path, **settings: Any) -> None:
        """Start a node; its files are below `directory`/dledger-<node>."""
        fields = {
            "group": GROUP,
            "dataFile": DATA_FILE,
            "indexFile": INDEX_FILE,
            "heartBeat": HEARTBEAT,
            "minVote": MIN_VOTE,
            "maxVote": MAX_VOTE,
            **settings,
        }
        self.call("start", id=node, peers=peers_text(peers), directory=str(directory), **fields)

    def stop(self, node: str) -> None:
        """Stop a node."""
        self.call("stop", id=node)

    def state(self, node: str) -> dict[str, Any]:
        """Return role, term, leader, begin, end and committed index."""
        state: dict[str, Any] = self.call("state", id=node)
        return state

    def append(self, node: str, size: int, count: int) -> dict[str, Any]:
        """Append entries by a leader; return how many got which code, and the last index."""
        result: dict[str, Any] = self.call("append", id=node, size=size, count=count)
        return result

    def client(self, peers: Peers, **request: Any) -> Any:
        """Let Java's client of a group append, get or transfer; return a code, or the body."""
        return self.call("client", group=GROUP, peers=peers_text(peers), **request)
