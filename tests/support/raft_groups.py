"""Raft groups of real brokers: processes of pyromq and of Java, with proxies between them.

    with RaftGroup(tmp_path, namesrv, ["pyromq", "java", "java"]) as group:
        leader = group.leader()
        group.isolate(leader)            # or group.nodes[leader].kill(), pause(), ...
        group.heal()
        end = group.settle()             # all logs have the same end, all of it committed
        group.stop()
        entries = assert_same_files(group.stores(), at_least=end)     # tests/support/raft_files.py

Node k has the id nk, its own directory, and ports that stay the same. Each node reaches each other
one through a proxy of its own: its dLegerPeers has its own real address, and those of proxies for
the others. Nodes of either system compare ids only, so the lists may differ.

With `timing`, pyromq's nodes have other intervals than RocketMQ's (2 s between heartbeats, 6 s
until an election); Java's nodes have no settings for that.

Called by tests, on any thread; every call blocks.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.apache_rocketmq import ask, cluster_info, free_port, java_or_skip
from tests.support.java_pair import JavaNode, Node, NodeError, NodeSettings
from tests.support.patience import DEADLINE, wait_until
from tests.support.proxy import Direction, Proxy
from tests.support.raft_program import SLOW_DISK
from tests.support.replication_nodes import Kind, PyromqNode, pyromq_environment

GROUP: Final = "raft"
#: Elections within a second or two, also on a machine with other work.
QUICK_TIMING: Final = {
    "heartbeat_interval": 400,
    "min_vote_interval": 50,
    "max_vote_interval": 250,
    "commit_interval": 200,
}
#: Small files; nothing ever expires.
PROPERTIES: Final = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "fileReservedTime": "1000000",
    "cleanFileForciblyEnable": "false",
    "diskMaxUsedSpaceRatio": "95",
    "flushConsumerOffsetInterval": "500",
    "registerNameServerPeriod": "10000",
}
_LEADER: Final = re.compile(rb'\b"?0"?:"(127\.0\.0\.1:\d+)"')
_SETTLE_SECONDS: Final = 2 * DEADLINE
_POLL_SECONDS: Final = 0.02
_PROGRAM: Final = Path(__file__).with_name("raft_program.py")


class RaftGroup:
    """A group, for as long as the `with` block runs."""

    def __init__(
        self,
        directory: Path,
        namesrv: str,
        kinds: Sequence[Kind],
        *,
        timing: Mapping[str, int] | None = None,
        **properties: str,
    ) -> None:
        self._directory = directory
        self._namesrv = namesrv
        self._timing = dict(timing or {})
        self._properties = PROPERTIES | properties
        self._ports: dict[str, int] = {}
        self._kinds = {f"n{number}": kind for number, kind in enumerate(kinds)}
        self.nodes: dict[str, Node] = {}
        #: The way of a node's requests, and of the answers to them, by sender and receiver.
        self.links: dict[tuple[str, str], Proxy] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self._kinds:
                self._ports[node] = _other_port(self._ports.values())
            for sender in self._kinds:
                for receiver, port in self._ports.items():
                    if sender != receiver:
                        proxy = stack.enter_context(Proxy(f"127.0.0.1:{port}"))
                        self.links[sender, receiver] = proxy
            for node, kind in self._kinds.items():
                self.nodes[node] = self._make_node(node, kind)
                stack.callback(self._kill, node)
                self.nodes[node].start(wait=False)
            self._stack = stack.pop_all()
        try:
            for each in self.nodes.values():
                each.wait_ready()
            self.leader()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for node in self.nodes.values():
                with suppress(OSError):
                    error.add_note(f"{node} logged:\n{node.log()[-3000:]}")
        self._stack.close()

    def _kill(self, node: str) -> None:
        self.nodes[node].kill()

    def _make_node(self, node: str, kind: Kind, port: int = 0) -> Node:
        addresses = {
            other: self._ports[other] if other == node else self.links[node, other].port
            for other in self._kinds
        }
        properties = {
            **self._properties,
            "enableDLegerCommitLog": "true",
            "dLegerGroup": GROUP,
            "dLegerPeers": ";".join(f"{id_}-127.0.0.1:{at}" for id_, at in addresses.items()),
            "dLegerSelfId": node,
        }
        settings = NodeSettings(
            self._directory / node,
            self._namesrv,
            broker_name=GROUP,
            port=port,
            properties=properties,
        )
        if kind == "java":
            java_or_skip()
            return JavaNode(settings)
        environment = pyromq_environment() | {SLOW_DISK: str(self._slow_file(node))}
        environment["PYTHONFAULTHANDLER"] = "1"
        if not self._timing:
            return PyromqNode(settings, environment=environment)
        return PyromqNode(
            settings,
            environment=environment,
            program=(str(_PROGRAM), json.dumps(self._timing)),
        )

    # Nodes

    def leader(self) -> str:
        """Wait until the NameServer knows a leader that answers; return its id."""
        found: list[str] = []

        def is_found() -> bool:
            found[:] = [self.leader_now() or ""]
            return bool(found[0])

        wait_until(is_found)
        return found[0]

    def leader_now(self) -> str | None:
        """Return the id of the leader that the NameServer knows, if it answers."""
        match = _LEADER.search(cluster_info(self._namesrv))
        if match is None:
            return None
        address = match[1].decode()
        for node, each in self.nodes.items():
            if each.address == address and each.runs:
                with suppress(OSError):
                    each.runtime_info(timeout=1.0)
                    return node
        return None

    def leader_other_than(self, former: str) -> str:
        """Wait until another node leads; return its id."""
        wait_until(lambda: self.leader_now() not in (None, former))
        return self.leader()

    def transfer(self, node: str, to: str, timeout: float = DEADLINE) -> str:
        """Order a leader of pyromq to hand over; return why it did not, or "". Raises OSError."""
        header, _ = ask(
            self.nodes[node].address, RequestCode.TRANSFER_LEADERSHIP, {"nodeId": to}, timeout
        )
        return "" if header["code"] == ResponseCode.SUCCESS else str(header.get("remark"))

    def replace(self, node: str, kind: Kind) -> None:
        """Stop a node as an operator does; start one of a kind on its files and ports."""
        former = self.nodes[node]
        former.stop()
        self.nodes[node] = self._make_node(node, kind, former.port)
        self.nodes[node].start()

    def slow_disk(self, node: str, seconds: float) -> None:
        """Let each fsync of a node of ours with other timing take so much longer, from now on."""
        self._slow_file(node).write_text(f"{seconds}")

    def _slow_file(self, node: str) -> Path:
        return self._directory / f"{node}.slow"

    # Network

    def isolate(self, node: str, *, silent: bool = False) -> None:
        """Cut a node off from the others: connections end, or nothing passes any more."""
        for pair in self.links:
            if node in pair:
                self.cut(*pair, silent=silent)

    def cut(self, sender: str, receiver: str, *, silent: bool = False) -> None:
        """Cut the requests of one node to another, and the answers to them."""
        proxy = self.links[sender, receiver]
        if silent:
            proxy.stall()
        else:
            proxy.refuse()

    def stall(self, sender: str, receiver: str, direction: Direction) -> None:
        """Let only requests or only answers pass between two nodes."""
        self.links[sender, receiver].stall(direction)

    def heal(self) -> None:
        """End everything that was done to the network."""
        for proxy in self.links.values():
            proxy.refuse(False)
            proxy.resume()

    def heal_all(self) -> None:
        """End faults of the network, resume paused nodes, start nodes that do not run."""
        self.heal()
        for node in self.nodes.values():
            if node.runs:
                node.resume()
            else:
                node.start(wait=False)

    # Logs

    def wait_for_log_ends(self) -> None:
        """Wait until each node has what any of them has now, while messages may arrive."""
        end = 0
        for node in self.nodes.values():
            with suppress(OSError):
                end = max(end, int(node.runtime_info(timeout=1.0)["commitLogMaxOffset"]))
        for node in self.nodes.values():
            node.wait_for_log_end(end)

    def settle(self) -> int:
        """Wait until all nodes have the same committed log, dispatched; return its end."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        last: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                for id_, node in self.nodes.items():
                    table = node.runtime_info(timeout=5.0)
                    last[id_] = int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])
            except OSError as error:
                last["error"] = str(error)
            else:
                if len(set(last.values())) == 1 and all(not behind for _, behind in last.values()):
                    return int(last["n0"][0])
            last.pop("error", None)
            time.sleep(_POLL_SECONDS)
        raise NodeError(f"the nodes did not agree within {_SETTLE_SECONDS:g} s: {last}")

    def stop(self) -> None:
        """End all nodes as an operator does, at once."""
        with ThreadPoolExecutor(len(self.nodes)) as executor:
            for ending in [executor.submit(node.stop) for node in self.nodes.values()]:
                ending.result()

    def stores(self) -> dict[str, Path]:
        """Return the stores, by the ids of their nodes."""
        return {id_: node.store for id_, node in self.nodes.items()}


def _other_port(taken: Any) -> int:
    while (port := free_port()) in taken:
        pass
    return port
