"""A raft group in a test process: start, wait for a leader, pause, compare logs.

Each node has an event loop in a thread of its own. So a node can be paused like a process that gets
SIGSTOP: its thread waits, and its connections stay open. The elections of these
nodes are ten times as fast as in production, so that a fail-over takes about a second.

Invariants
1. A node keeps its ports and its id; only `empty` removes its files.
2. Nothing waits for a paused node, except `start`, `stop` and `kill` of itself, which resume it.

`RaftGroup` runs on the loop of the cluster, and calls brokers on their own loops.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pyromq.base.sizes import MIB
from pyromq.broker.config import MASTER_ID
from pyromq.broker.services.raft import BrokerRaft
from pyromq.client.loop_thread import LoopThread
from pyromq.nameserver.server import NameServer
from pyromq.raft.log import RaftLog
from pyromq.raft.member import Role
from pyromq.remoting.server import bound_socket
from pyromq.testing.node import HOST, Node
from pyromq.testing.replicas import DivergedError, PromotionError

#: Milliseconds, a tenth of DLedger's.
TIMING: Final = {
    "heartbeat_interval": 200,
    "min_vote_interval": 30,
    "max_vote_interval": 100,
    "vote_wait": 300,
    "push_timeout": 500,
    "compare_timeout": 1000,
    "retry_delay": 50,
    "commit_interval": 100,
    "preferred_leader_interval": 100,
}
#: How long an election may take at a start, and when a test needs a leader.
ELECTION_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.005
_MAX_COMPARED: Final = MIB

_Result = TypeVar("_Result")


class RaftMember:
    """One node of a group, on a loop of its own."""

    def __init__(self, node_id: str, node: Node) -> None:
        self.node_id = node_id
        self.node = node
        self._thread: LoopThread | None = None
        #: Set to let a paused loop continue.
        self._pause: threading.Event | None = None

    # Loop

    def open(self) -> None:
        """Start the loop."""
        self._thread = LoopThread(f"pyromq-testing-{self.node_id}")

    def close(self) -> None:
        """End the loop."""
        self.resume()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    async def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the node's loop, from the cluster's."""
        assert self._thread is not None
        return await self._thread.run_from_loop(coroutine)

    @property
    def is_paused(self) -> bool:
        """Return whether the loop waits."""
        return self._pause is not None

    def pause(self) -> None:
        """Stop the loop, as SIGSTOP does with a process; return when it waits. Idempotent."""
        if self._pause is not None:
            return
        assert self._thread is not None
        self._pause, waits = threading.Event(), threading.Event()

        def wait(pause: threading.Event = self._pause) -> None:
            waits.set()
            pause.wait()

        self._thread.loop.call_soon_threadsafe(wait)
        waits.wait()

    def resume(self) -> None:
        """Let the loop continue. Idempotent."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.set()

    # State; from any thread

    @property
    def raft(self) -> BrokerRaft | None:
        """Return the membership of its broker, if that runs."""
        broker = self.node.broker
        return None if broker is None else broker.raft

    @property
    def is_serving(self) -> bool:
        """Return whether it runs and is not paused."""
        return self.raft is not None and not self.is_paused

    @property
    def is_leader(self) -> bool:
        """Return whether it leads and accepts messages, as far as it knows."""
        raft = self.raft
        return raft is not None and raft.node.role is Role.LEADER and not self.node.is_replica

    @property
    def term(self) -> int:
        """Return its term; -1 if it is stopped."""
        raft = self.raft
        return -1 if raft is None else raft.node.term

    @property
    def log(self) -> RaftLog | None:
        """Return its log, if it runs."""
        broker = self.node.broker
        store = None if broker is None else broker.store
        if store is None or store.agreement is None:
            return None
        entries = store.agreement.entries
        assert isinstance(entries, RaftLog)
        return entries


class RaftGroup:
    """The nodes of one group."""

    def __init__(
        self,
        settings: Mapping[str, str],
        directory: Path,
        count: int,
        name_server: NameServer,
    ) -> None:
        """`settings` are those of all nodes, except for the group's."""
        self.name = settings["brokerName"]
        self._name_server = name_server
        held = [bound_socket(HOST, 0, is_chosen=False) for _ in range(count)]
        peers = ";".join(f"n{number}-{HOST}:{_port(each)}" for number, each in enumerate(held))
        group = {
            "dLegerGroup": self.name,
            **settings,
            "enableDLegerCommitLog": "true",
            "dLegerPeers": peers,
        }
        self.members = tuple(
            RaftMember(
                f"n{number}",
                Node(
                    {**group, "dLegerSelfId": f"n{number}"},
                    directory / f"{self.name}-n{number}",
                    raft_timing=TIMING,
                    held=[each],
                ),
            )
            for number, each in enumerate(held)
        )

    def member_of(self, node: Node) -> RaftMember:
        """Return the member with this broker."""
        return next(member for member in self.members if member.node is node)

    # Lifecycle

    async def start_all(self) -> None:
        """Start all nodes; return when one leads."""
        for member in self.members:
            member.open()
        await self._start_nodes()

    async def _start_nodes(self) -> None:
        starts = [member.run(member.node.start()) for member in self.members]
        # All of them end before an error is raised, so that all can be stopped.
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        await self.await_leader(ELECTION_SECONDS)

    async def start(self, node: Node, settings: Mapping[str, str]) -> None:
        """Start one node; return when it follows or leads, if a quorum runs."""
        member = self.member_of(node)
        member.resume()
        await member.run(member.node.start(settings))
        if 2 * sum(each.is_serving for each in self.members) > len(self.members):
            deadline = time.monotonic() + ELECTION_SECONDS
            if not await _wait(lambda: member.is_leader or _follows(member), deadline):
                raise TimeoutError(
                    f"node {member.node_id} of {self.name} found no leader within "
                    f"{ELECTION_SECONDS:g} s: see the log"
                )

    async def stop(self, node: Node) -> None:
        """Stop one node cleanly: a leader hands over."""
        member = self.member_of(node)
        member.resume()
        await member.run(member.node.stop())

    async def kill(self, node: Node) -> None:
        """End one node like a killed process."""
        member = self.member_of(node)
        # It is queued before the loop continues: a paused node does nothing else.
        killed = asyncio.ensure_future(member.run(member.node.kill()))
        await asyncio.sleep(0)
        member.resume()
        await killed

    async def empty(self, node: Node) -> None:
        """Stop one node and remove its files, as if its disk was replaced."""
        await self.stop(node)
        node.empty()

    async def stop_all(self) -> None:
        """Stop all nodes, the leader last, so that nobody takes over."""
        for member in sorted(self.members, key=lambda each: each.is_leader):
            await self.stop(member.node)

    async def close(self) -> None:
        """Stop everything and give the ports away."""
        try:
            await self.stop_all()
        finally:
            for member in self.members:
                member.close()
                member.node.release()

    async def reset(self) -> None:
        """Empty all nodes and start them again."""
        await self.stop_all()
        for member in self.members:
            member.node.empty()
        await self._start_nodes()

    # Waiting

    async def serving(self) -> Node | None:
        """Return the broker that accepts messages; wait for an election if a quorum runs."""
        if 2 * sum(each.is_serving for each in self.members) <= len(self.members):
            return None
        return (await self.await_leader(ELECTION_SECONDS)).node

    @property
    def is_running(self) -> bool:
        """Return whether one of the nodes can be read from."""
        return any(each.is_serving for each in self.members)

    def leader(self) -> RaftMember | None:
        """Return the node that leads and that clients find; None during an election."""
        leaders = [each for each in self.members if each.is_serving and each.is_leader]
        table = self._name_server.routes.cluster_info().broker_addr_table
        known = table[self.name].broker_addrs.get(MASTER_ID) if self.name in table else None
        found = [each for each in leaders if each.node.address == known]
        return max(found, key=lambda each: each.term, default=None)

    async def await_leader(self, seconds: float) -> RaftMember:
        """Return the leader, once clients find it. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        if not await _wait(self.leader, deadline):
            states = ", ".join(f"{each.node_id}: {_state(each)}" for each in self.members)
            raise TimeoutError(f"group {self.name} has no leader after {seconds:g} s ({states})")
        found = self.leader()
        return await self.await_leader(seconds) if found is None else found

    async def transfer(self, node: Node, seconds: float) -> None:
        """Let a node lead. Raises RuntimeError if it refuses, TimeoutError."""
        member = self.member_of(node)
        leader = await self.await_leader(seconds)
        if leader is member:
            return
        raft = leader.raft
        if raft is None:
            raise RuntimeError(f"node {leader.node_id} of {self.name} stopped meanwhile")
        problem = await leader.run(raft.transfer(member.node_id))
        if problem is not None:
            raise RuntimeError(f"node {member.node_id} of {self.name} does not lead: {problem}")
        deadline = time.monotonic() + seconds
        if not await _wait(lambda: self.leader() is member, deadline):
            raise TimeoutError(
                f"node {member.node_id} of {self.name} does not lead after {seconds:g} s"
            )

    async def await_committed(self, seconds: float) -> None:
        """Wait until every serving node has all entries of the leader, and compare the bytes.

        Raises TimeoutError, or DivergedError if two logs differ.
        """
        deadline = time.monotonic() + seconds
        leader = await self.await_leader(seconds)
        if not await _wait(lambda: _is_level(self._serving()), deadline):
            states = ", ".join(f"{each.node_id}: {_entries(each)}" for each in self._serving())
            raise TimeoutError(f"the nodes of {self.name} differ after {seconds:g} s ({states})")
        serving = self._serving()
        for member in serving:
            if member is not leader:
                await self._copy_tables(member, deadline)
                await asyncio.to_thread(_compare, leader, member)

    async def await_replicas(self, node: Node, seconds: float) -> None:
        """Do the same as `await_committed`, for a broker that leads. Raises RuntimeError."""
        if not self.member_of(node).is_leader:
            raise RuntimeError(f"{node.name} at {node.address} does not lead its raft group")
        await self.await_committed(seconds)

    async def promote(self, node: Node, role: str, *, force: bool) -> None:
        """Refuse: the group elects its master."""
        del role, force
        raise PromotionError(
            f"{node.name} at {node.address} is in a raft group, which elects its master: use lead()"
        )

    async def rejoin(self, node: Node, *, empty: bool) -> None:
        """Start a node, perhaps without its files; it follows the leader."""
        if empty:
            await self.empty(node)
        await self.start(node, {})

    def _serving(self) -> list[RaftMember]:
        return [each for each in self.members if each.is_serving]

    async def _copy_tables(self, member: RaftMember, deadline: float) -> None:
        while (raft := member.raft) is not None and member.node.is_replica:
            faults = await member.run(raft.copy_tables())
            if not faults:
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"node {member.node_id} of {self.name}: {'; '.join(faults)}")
            await asyncio.sleep(_POLL_SECONDS)


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _follows(member: RaftMember) -> bool:
    raft = member.raft
    return raft is not None and raft.is_following()


def _state(member: RaftMember) -> str:
    raft = member.raft
    if raft is None:
        return member.node.failure or "stopped"
    return "paused" if member.is_paused else f"{raft.node.role.name} of term {raft.node.term}"


def _entries(member: RaftMember) -> str:
    log = member.log
    return "stopped" if log is None else f"{log.end_index}, committed {log.committed_index}"


def _is_level(members: Sequence[RaftMember]) -> bool:
    logs = [member.log for member in members]
    ends = {(log.end_index, log.end_term, log.committed_index) for log in logs if log is not None}
    if len(ends) != 1 or None in logs:
        return False
    ((end, _, committed),) = ends
    return end == committed and all(member.node.is_indexed for member in members)


def _compare(one: RaftMember, other: RaftMember) -> None:
    """Raise DivergedError unless both have the same bytes, as far as both have them."""
    logs = one.log, other.log
    if logs[0] is None or logs[1] is None:
        return
    position = max(log.begin_position for log in logs if log is not None)
    end = min(log.written for log in logs if log is not None)
    while position < end:
        # Reads end at the end of a file, the same on all nodes.
        size = min(_MAX_COMPARED, end - position)
        pieces = [log.read(position, size) for log in logs if log is not None]
        if pieces[0] != pieces[1]:
            raise DivergedError(
                f"nodes {one.node_id} and {other.node_id} of {one.node.name} differ between "
                f"positions {position} and {position + size}"
            )
        if not pieces[0]:
            return
        position += len(pieces[0])


async def _wait(condition: Callable[[], object], deadline: float) -> bool:
    """Wait until a condition holds; return False if it does not in time."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
