"""A master and its replicas in a test process: start, wait, promote, bring back.

`ReplicaGroup` has the brokers of one name. It knows which one is the master, and makes replicas
look for it at once instead of at their next retry.

Invariants
1. A master that was replaced does not start as a second master.
2. After a start the replicas that run follow the master that runs, or the start raises.

Used by `cluster` and `broker`, on the loop of the servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.promotion import PromoteBrokerRequestHeader
from pyromq.remoting.client import RemotingClient
from pyromq.testing.node import Node

_POLL_SECONDS: Final = 0.002
#: How long a replica may take to connect to its master.
_FOLLOW_SECONDS: Final = 30.0
_PROMOTION_SECONDS: Final = 60.0


class DivergedError(RuntimeError):
    """A replica stopped, because its log is not its master's; the text says where they part."""


class PromotionError(RuntimeError):
    """A replica was not promoted; the text says why."""


class ReplicaGroup:
    """The brokers of one name."""

    def __init__(
        self, nodes: Sequence[Node], operator: Callable[[], RemotingClient] = RemotingClient
    ) -> None:
        """The first one is the master. `operator` makes a client that may promote brokers."""
        self.nodes = tuple(nodes)
        self._operator = operator
        self._master = self.nodes[0]

    @property
    def name(self) -> str:
        """Return the name that the brokers share."""
        return self._master.name

    @property
    def master(self) -> Node:
        """Return the broker that is the master, or was the last one."""
        for node in self.nodes:
            if node.was_promoted:
                node.keep_role()
                self._master = node
        return self._master

    @property
    def is_running(self) -> bool:
        """Return whether the master runs."""
        return self.master.broker is not None

    async def serving(self) -> Node | None:
        """Return the broker that accepts messages, if it runs."""
        return self.master if self.master.broker is not None else None

    # Lifecycle

    async def start_all(self) -> None:
        """Start the master, then its replicas. Raises as `start` does."""
        await self.master.start()
        replicas = [node for node in self.nodes if node is not self.master]
        await asyncio.gather(*(node.start() for node in replicas))
        await self._until_following(replicas)

    async def start(self, node: Node, settings: Mapping[str, str]) -> None:
        """Start one broker in the role that it had.

        Raise RuntimeError if it was the master and another one is now, DivergedError if a replica
        cannot follow, and TimeoutError if one does not.
        """
        master = self.master
        if node is not master and not node.is_replica:
            raise RuntimeError(
                f"{node.name} has another master by now, {master.address}: rejoin() brings this "
                "broker back as its replica"
            )
        await node.start(settings)
        if node is master:
            await self._until_following(await self._replicas_look())
        elif master.broker is not None:
            await self._until_following([node])

    async def stop(self, node: Node) -> None:
        """Stop one broker cleanly."""
        await node.stop()

    async def kill(self, node: Node) -> None:
        """End one broker like a killed process."""
        await node.kill()

    async def stop_all(self) -> None:
        """Stop all brokers."""
        # Without a warning of one broker about the departure of another: replication ends on both
        # sides at once, and replicas, which also ask the master for its tables, stop before it.
        master = self.master
        for node in self.nodes:
            if node.replication is not None:
                node.replication.cut_off()
        for node in self.nodes:
            if node is not master:
                await node.stop()
        await master.stop()

    async def close(self) -> None:
        """Stop all brokers and give their ports away."""
        await self.stop_all()
        for node in self.nodes:
            node.release()

    async def reset(self) -> None:
        """Empty all brokers and start them in their first roles."""
        await self.stop_all()
        for node in self.nodes:
            node.restore_role()
            node.empty()
        self._master = self.nodes[0]
        await self.start_all()

    # Roles

    async def promote(self, node: Node, role: str, *, force: bool) -> None:
        """Make a replica the master. Raises PromotionError if it refuses."""
        if node.broker is None:
            raise PromotionError(f"{node.name} at {node.address} is not running")
        if self.master.broker is None:
            # Its end of the connection may not have noticed yet.
            await _wait(lambda: not node.is_following, time.monotonic() + _FOLLOW_SECONDS)
        header = PromoteBrokerRequestHeader(role, force)
        command = RemotingCommand(RequestCode.PROMOTE_BROKER, ext_fields=header.encode())
        client = self._operator()
        try:
            answer = await client.request(node.address, command, _PROMOTION_SECONDS)
        finally:
            await client.close()
        if answer.code != ResponseCode.SUCCESS:
            raise PromotionError(f"{node.name} at {node.address}: {answer.remark}")
        # Those with a longer log stop; await_replicas tells.
        replicas = await self._replicas_look()
        deadline = time.monotonic() + _FOLLOW_SECONDS
        await _wait(lambda: all(each.is_following or each.failure for each in replicas), deadline)

    async def rejoin(self, node: Node, *, empty: bool) -> None:
        """Start an old master as a replica; `empty` removes its files first.

        Raises as `start` does.
        """
        master = self.master
        if node is master:
            raise RuntimeError(f"{node.name} at {node.address} is the master: promote() another")
        if master.broker is None:
            raise RuntimeError(f"the master of {node.name}, {master.address}, is not running")
        if node.broker is None or not node.is_replica or empty:
            # A running old master unregisters the id of the new one.
            registers_again = node.broker is not None
            await node.stop()
            if registers_again:
                await _look(master)
            if not node.is_replica:
                used = {each.broker_id for each in self.nodes if each is not node}
                node.set_replica(min(set(range(1, len(self.nodes) + 1)) - used))
            if empty:
                node.empty()
            await node.start()
        await self._until_following([node])

    # Waiting

    async def await_replicas(self, node: Node, seconds: float) -> None:
        """Wait until every running replica has everything that the master has.

        Raise RuntimeError if it is not the master or no replica runs, DivergedError if a replica
        has stopped by itself, TimeoutError after `seconds`.
        """
        if node is not self.master or node.broker is None:
            raise RuntimeError(f"{node.name} at {node.address} is not a running master")
        others = [each for each in self.nodes if each is not node]
        await _raise_failures(others)
        replicas = [each for each in others if each.broker is not None]
        if not replicas:
            raise RuntimeError(f"no replica of {node.name} is running")
        deadline = time.monotonic() + seconds
        end = node.log_end
        for each in replicas:

            def is_done(each: Node = each) -> bool:
                has_all = each.is_following and each.log_end >= end and each.is_indexed
                return has_all or each.failure is not None

            if not await _wait(is_done, deadline):
                raise TimeoutError(
                    f"replica {each.address} of {node.name} has {each.log_end} of {end} bytes "
                    f"after {seconds:g} s"
                )
        await _raise_failures(replicas)
        for each in replicas:
            await _copy_tables(each, deadline)

    async def _replicas_look(self) -> list[Node]:
        """Make all running replicas look for the master; return them."""
        replicas = [node for node in self.nodes if node.broker is not None and node.is_replica]
        await asyncio.gather(*map(_look, replicas))
        return replicas

    async def _until_following(self, replicas: Sequence[Node]) -> None:
        deadline = time.monotonic() + _FOLLOW_SECONDS
        for node in replicas:

            def is_done(node: Node = node) -> bool:
                return node.is_following or node.broker is None

            if not await _wait(is_done, deadline):
                raise TimeoutError(
                    f"replica {node.address} of {node.name} did not reach its master within "
                    f"{_FOLLOW_SECONDS:g} s: see the log"
                )
        await _raise_failures(replicas)


async def _look(node: Node) -> None:
    if node.replication is not None:
        await node.replication.connect_now()


async def _copy_tables(replica: Node, deadline: float) -> None:
    while replica.replication is not None:
        faults = await replica.replication.copy_tables()
        if not faults:
            return
        if time.monotonic() >= deadline:
            raise TimeoutError(f"replica {replica.address} of {replica.name}: {'; '.join(faults)}")
        await asyncio.sleep(_POLL_SECONDS)


async def _raise_failures(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if node.failure is not None:
            await node.stop()
            raise DivergedError(f"replica {node.address} of {node.name} stopped: {node.failure}")


async def _wait(condition: Callable[[], object], deadline: float) -> bool:
    """Wait until a condition holds; return False if it does not in time."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
