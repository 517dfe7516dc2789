"""A broker of a cluster, as a test sees it: a master, a replica, or a node of a raft group.

    (master,) = cluster.brokers
    (replica,) = master.replicas
    master.await_replicas()          # the replica has every message
    master.kill()
    replica.promote()                # as `pyromq broker promote`
    master.rejoin()                  # the old master comes back as a replica

Methods block; coroutines use those named `..._async`. Call from any thread except the cluster's
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pyromq.client.arguments import check_seconds
from pyromq.testing.node import Node
from pyromq.testing.server_loop import ServerLoop


class BrokerGroup(Protocol):
    """The brokers of one name: `ReplicaGroup` or `RaftGroup`, on the cluster's loop."""

    async def start(self, node: Node, settings: Mapping[str, str]) -> None:
        """Start a broker."""

    async def stop(self, node: Node) -> None:
        """Stop a broker cleanly."""

    async def kill(self, node: Node) -> None:
        """End a broker like a killed process."""

    async def await_replicas(self, node: Node, seconds: float) -> None:
        """Wait until the others have everything that the master has."""

    async def promote(self, node: Node, role: str, *, force: bool) -> None:
        """Make a replica the master."""

    async def rejoin(self, node: Node, *, empty: bool) -> None:
        """Bring an old master back as a replica."""


class ClusterBroker:
    """A broker of a cluster, which tests can stop, kill and promote. It keeps its port and role."""

    def __init__(
        self, loop: ServerLoop, group: BrokerGroup, node: Node, peers: Sequence[ClusterBroker]
    ) -> None:
        """`peers` are all brokers of the group."""
        self.name = node.name
        self._loop = loop
        self._group = group
        self._node = node
        self._peers = peers

    @property
    def address(self) -> str:
        """Return its address, which stays the same while it is stopped."""
        return self._node.address

    @property
    def is_running(self) -> bool:
        """Return whether it is running."""
        return self._node.broker is not None

    @property
    def is_replica(self) -> bool:
        """Return whether it follows a master, or will when it starts again."""
        return self._node.is_replica

    @property
    def failure(self) -> str | None:
        """Return why a replica stopped by itself: its log is not its master's."""
        return self._node.failure

    @property
    def replicas(self) -> list[ClusterBroker]:
        """Return the other brokers of its name; they follow it while it is the master."""
        return [peer for peer in self._peers if peer is not self]

    @property
    def directory(self) -> Path:
        """Return its store directory."""
        return self._node.directory

    # Lifecycle

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it again on its own files; `settings` apply from now on.

        Return when its replicas follow it, or it follows its master, if that runs. Raise
        RuntimeError if another broker was promoted in its place (see `rejoin`), DivergedError if a
        replica's log is not its master's.
        """
        self._loop.run(self._start(settings))

    def stop(self) -> None:
        """Stop it cleanly: answer requests in flight, unregister from the NameServer."""
        self._loop.run(self._group.stop(self._node))

    def kill(self) -> None:
        """End it like a killed process: connections break, nothing more is written."""
        self._loop.run(self._group.kill(self._node))

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """`stop` and `start`."""
        self._loop.run(self._restart(settings))

    async def start_async(self, settings: Mapping[str, str] | None = None) -> None:
        """`start` for coroutines."""
        await self._loop.run_from_loop(self._start(settings))

    async def stop_async(self) -> None:
        """`stop` for coroutines."""
        await self._loop.run_from_loop(self._group.stop(self._node))

    async def kill_async(self) -> None:
        """`kill` for coroutines."""
        await self._loop.run_from_loop(self._group.kill(self._node))

    async def restart_async(self, settings: Mapping[str, str] | None = None) -> None:
        """`restart` for coroutines."""
        await self._loop.run_from_loop(self._restart(settings))

    # Replication

    def await_replicas(self, *, timeout: float = 10.0) -> None:
        """Wait until every running replica has all messages, topics, groups and offsets of now.

        Raise TimeoutError after `timeout` seconds, DivergedError if a replica has stopped by
        itself, and RuntimeError if no replica runs or this is not the master.
        """
        self._loop.run(self._await_replicas(timeout))

    def promote(self, *, role: str = "ASYNC_MASTER", force: bool = False) -> None:
        """Make this replica the master, as `pyromq broker promote` does.

        Raise PromotionError while the old master runs, unless `force` is set. With the role
        SYNC_MASTER, sends get SLAVE_NOT_AVAILABLE until the broker has a replica.
        """
        self._loop.run(self._group.promote(self._node, role, force=force))

    def rejoin(self, *, empty: bool = False) -> None:
        """Bring an old master back as a replica of the promoted broker.

        Raise DivergedError if it has messages that the new master never got. `empty` removes its
        files first, and it copies everything.
        """
        self._loop.run(self._group.rejoin(self._node, empty=empty))

    async def await_replicas_async(
        self,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - part of its error
    ) -> None:
        """`await_replicas` for coroutines."""
        await self._loop.run_from_loop(self._await_replicas(timeout))

    async def promote_async(self, *, role: str = "ASYNC_MASTER", force: bool = False) -> None:
        """`promote` for coroutines."""
        await self._loop.run_from_loop(self._group.promote(self._node, role, force=force))

    async def rejoin_async(self, *, empty: bool = False) -> None:
        """`rejoin` for coroutines."""
        await self._loop.run_from_loop(self._group.rejoin(self._node, empty=empty))

    # Helpers, in call order. On the cluster's loop.

    async def _start(self, settings: Mapping[str, str] | None) -> None:
        await self._group.start(self._node, settings or {})

    async def _restart(self, settings: Mapping[str, str] | None) -> None:
        await self._group.stop(self._node)
        await self._start(settings)

    async def _await_replicas(self, timeout: float) -> None:  # noqa: ASYNC109 - part of its error
        check_seconds("timeout", timeout, may_be_zero=True)
        await self._group.await_replicas(self._node, timeout)
