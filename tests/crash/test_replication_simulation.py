"""A master and a replica without sockets: many short connections, cut and damaged at random.

Both ends are the real ones, on real stores; a test carries their bytes, in random pieces, and
damages them on the way. At every step, what the master counts as replicated is in the replica's
log, and that log is a beginning of the master's; a connection without damage always catches up.

A schedule depends on its seed and number alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pyromq.replication.feeder import Feeder, FeederState
from pyromq.replication.link import LinkError, LinkState, MasterRefusedError, ReplicaLink
from pyromq.replication.master import ReplicationMaster
from pyromq.replication.replica import Replica
from pyromq.store.config import BrokerRole
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from tests.support.crash import seeds
from tests.support.damage import damaged
from tests.support.examples import is_soak
from tests.support.stores import SEGMENT, open_store, put

SCHEDULES: Final = 200
#: A replica begins again after so many schedules, so that logs stay short.
PER_PAIR: Final = 150
#: Steps without a byte after which nothing more will happen.
IDLE_STEPS: Final = 12


class Line:
    """One end of a connection: what it writes waits until the test carries it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: tuple[bytes, memoryview]) -> None:
        for piece in pieces:
            self.written += piece

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def take(self, rng: random.Random) -> bytes:
        """Remove some of the bytes."""
        size = min(len(self.written), rng.choice([1, 5, 12, 100, 3_000, 1 << 20]))
        taken = bytes(self.written[:size])
        del self.written[:size]
        return taken


class Pair:
    """Two stores, and one connection after the other between them."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self._rng = rng
        self.master: MessageStore = open_store(root / "master")
        self.replica: MessageStore = open_store(root / "replica", broker_role=BrokerRole.SLAVE)
        self.host = ReplicationMaster(self.master.config, self.master.replication, "broker-a")
        self.host.serve(BrokerRole.SYNC_MASTER)
        self._follower = Replica(
            self.replica.config,
            self.replica.replication,
            address=lambda: "",
            broker_id=lambda: 1,
            examine_java=_refuse_java,
            on_stop=lambda _: None,
        )

    def fill(self) -> None:
        """Append some messages to the master's log."""
        for _ in range(self._rng.choice([0, 1, 3, 20])):
            body = self._rng.randbytes(self._rng.choice([0, 10, 1_000, 9_000]))
            put(self.master, body, queue_id=self._rng.randrange(4), keys="k")
        self.master.seal()

    async def connect(self, damage: Callable[[bytes], bytes]) -> None:
        """Make one connection, carry its bytes with this damage, and end it at some moment."""
        loop, rng = asyncio.get_running_loop(), self._rng
        feeder = Feeder(self.host, loop)
        link = ReplicaLink(self.replica.config, self.replica.replication, loop)
        at_master, at_replica = Line(), Line()
        feeder.connection_made(at_master)  # type: ignore[arg-type] # it has what is needed
        link.connection_made(at_replica)  # type: ignore[arg-type]
        following = asyncio.ensure_future(self._follow(link))
        idle = 0
        while idle < IDLE_STEPS and not at_master.is_closed and not at_replica.is_closed:
            idle += 1
            await asyncio.sleep(0)
            if rng.random() < 0.05:
                idle = 0
                self.fill()
            for line, receive in (
                (at_replica, feeder.data_received),
                (at_master, _receiver(link)),
            ):
                if line.written and rng.random() < 0.8:
                    idle = 0
                    receive(damage(line.take(rng)))
                    self.check(feeder)
        link.close("the end of the connection")
        with contextlib.suppress(LinkError, MasterRefusedError):
            await following
        feeder.connection_lost(None)
        self.check_log()

    async def _follow(self, link: ReplicaLink) -> None:
        """Do what `Replica` does with a connection. Raises DivergedError, which must not happen."""
        self.replica.replication.log.finish()
        hello = await link.enquire(60.0)
        assert hello is not None
        await self._follower._negotiate(link, hello)

    def check(self, feeder: Feeder) -> None:
        """What the master believes is true."""
        has = self.replica.replication.log.boundary
        assert self.master.replication.replicated_offset <= has
        if feeder.state is FeederState.FEEDING:
            assert feeder.acked <= has

    def check_log(self) -> None:
        """The replica's log is a beginning of the master's; its end is enough to compare."""
        ours, theirs = self.replica.replication.source, self.master.replication.source
        begin = max(0, ours.end - SEGMENT)
        while begin < ours.end:
            piece = ours.slice(begin, SEGMENT)
            assert piece == theirs.slice(begin, len(piece))
            begin += len(piece)

    def close(self) -> None:
        self.host.withdraw()
        self.master.stop()
        self.replica.stop()
        for store in (self.master, self.replica):
            assert list(check_store(store.config.root, store.config)) == []


async def _refuse_java(_: str) -> None:
    raise AssertionError("the master is not Java's")


def _receiver(link: ReplicaLink) -> Callable[[bytes], None]:
    def receive(data: bytes) -> None:
        while data and link.state is not LinkState.CLOSED:
            room = link.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            link.buffer_updated(size)
            data = data[size:]

    return receive


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Stands for asyncio.to_thread."""
    await asyncio.sleep(0)
    return function(*arguments)


def _damage(rng: random.Random) -> Callable[[bytes], bytes]:
    """Return what damages the pieces of a connection: some of them, or exactly one."""
    if rng.random() < 0.3:
        return lambda data: damaged(rng, data) if rng.random() < 0.1 else data
    left = rng.randrange(8)

    def damage_one(data: bytes) -> bytes:
        nonlocal left
        left -= 1
        return damaged(rng, data) if left == -1 else data

    return damage_one


async def simulate(root: Path, seed: int, count: int) -> None:
    for first in range(0, count, PER_PAIR):
        pair = Pair(root / str(first), random.Random(f"{seed} {first}"))
        for number in range(first, min(first + PER_PAIR, count)):
            rng = random.Random(f"{seed} {number}")
            try:
                pair.fill()
                is_clean = rng.random() < 0.2
                await pair.connect((lambda data: data) if is_clean else _damage(rng))
                if is_clean:
                    assert pair.replica.max_physical_offset == pair.master.max_physical_offset
                    assert (
                        pair.master.replication.replicated_offset == pair.master.max_physical_offset
                    )
            except BaseException as error:
                error.add_note(f"seed {seed}, schedule {number}")
                raise
        pair.close()


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "to_thread", _at_once)


async def test_the_master_believes_only_what_is_true(tmp_path: Path) -> None:
    await simulate(tmp_path, seed=20_261_117, count=SCHEDULES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(5) if is_soak() else [0])
async def test_the_master_always_believes_only_what_is_true(tmp_path: Path, seed: int) -> None:
    await simulate(tmp_path, seed, count=50 * SCHEDULES)
