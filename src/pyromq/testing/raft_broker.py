"""A node of a raft group, as a test sees it.

    with Cluster(raft=3) as cluster:
        leader = cluster.leader
        leader.kill()                    # the others elect another leader, in about a second
        cluster.await_leader()
        leader.start()                   # it follows, and gets what it lacks
        cluster.await_committed()        # all nodes have the same log, byte for byte

Methods block; coroutines use those named `..._async`. Call from any thread except the cluster's
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyromq.testing.broker import ClusterBroker
from pyromq.testing.raft import ELECTION_SECONDS, RaftGroup, RaftMember
from pyromq.testing.server_loop import ServerLoop


class RaftBroker(ClusterBroker):
    """A node of a raft group, which tests can also pause. It keeps its id and its ports."""

    def __init__(
        self,
        loop: ServerLoop,
        group: RaftGroup,
        member: RaftMember,
        peers: Sequence[ClusterBroker],
    ) -> None:
        """`peers` are all nodes of the group."""
        super().__init__(loop, group, member.node, peers)
        self.node_id = member.node_id
        self._nodes = group
        self._member = member

    @property
    def is_paused(self) -> bool:
        """Return whether it is paused."""
        return self._member.is_paused

    @property
    def is_leader(self) -> bool:
        """Return whether it leads and accepts messages, as far as it knows."""
        return self._member.is_leader

    @property
    def is_replica(self) -> bool:
        """Return whether it does not lead."""
        return not self._member.is_leader

    @property
    def term(self) -> int:
        """Return its term; -1 while it is stopped."""
        return self._member.term

    @property
    def end_index(self) -> int:
        """Return the index of its last entry; -1 if it has none or is stopped."""
        log = self._member.log
        return -1 if log is None else log.end_index

    @property
    def committed_index(self) -> int:
        """Return the index up to which it knows entries to be committed; -1 for none."""
        log = self._member.log
        return -1 if log is None else log.committed_index

    def pause(self) -> None:
        """Stop it like a process that gets SIGSTOP: connections stay open, nothing is answered.

        `start`, `stop` and `kill` end a pause.
        """
        self._loop.check()
        self._member.pause()

    def resume(self) -> None:
        """Let it continue after `pause`."""
        self._member.resume()

    def empty(self) -> None:
        """Stop it and remove its files, as if its disk had been replaced."""
        self._loop.run(self._nodes.empty(self._node))

    def lead(self, *, timeout: float = ELECTION_SECONDS) -> None:
        """Let it take over, as `pyromq raft transfer` does; return when clients find it.

        Raise RuntimeError if it cannot, TimeoutError if it takes longer.
        """
        self._loop.run(self._nodes.transfer(self._node, timeout))

    async def pause_async(self) -> None:
        """`pause` for coroutines."""
        await asyncio.to_thread(self.pause)

    async def empty_async(self) -> None:
        """`empty` for coroutines."""
        await self._loop.run_from_loop(self._nodes.empty(self._node))

    async def lead_async(
        self,
        *,
        timeout: float = ELECTION_SECONDS,  # noqa: ASYNC109 - part of its error
    ) -> None:
        """`lead` for coroutines."""
        await self._loop.run_from_loop(self._nodes.transfer(self._node, timeout))
