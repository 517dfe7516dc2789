"""A SYNC_MASTER and its replica as real processes, a load on them, and faults between and in them.

    with FaultyPair(tmp_path, seed) as pair:
        with pair.load():                # several connections; keeps what was acknowledged
            pair.choose_faults(3)        # kills, pauses, damaged bytes, clock jumps, a full disk
        pair.heal()                      # end the faults; both logs must become the same
    pair.check_files()

The replica reaches its master through a proxy. Only SEND_OK acknowledges a message: it must then
be on both sides, whatever happens. SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT tell that it is
stored on the master.

Called by tests, on the main thread; the load has a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyromq.protocol.message.record import MessageRecord
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError
from pyromq.store.offline.check import check_store
from tests.support.crash import (
    SETTINGS,
    STORE_SETTINGS,
    Acknowledged,
    Load,
    Verifier,
    places_of,
    send_command,
)
from tests.support.java_pair import Node, NodeSettings, Role
from tests.support.log_compare import assert_same_logs
from tests.support.patience import DEADLINE, wait_until
from tests.support.proxy import (
    ALL_FAULTS,
    HARMLESS_FAULTS,
    TO_CLIENT,
    TO_TARGET,
    Direction,
    Plan,
    Proxy,
    Script,
    Split,
    Stall,
    harmless,
    random_faults,
)
from tests.support.replication_nodes import (
    Kind,
    PyromqNode,
    make_node,
    name_server,
    pyromq_environment,
)
from tests.support.small_disk import small_disk
from tests.support.stores import log_records, open_store

#: Short silences and waits, so that a round is short too. Nothing ever expires.
PROPERTIES: Final = {
    **{key: str(value) for key, value in SETTINGS.items()},
    "haSendHeartbeatInterval": "300",
    "haHousekeepingInterval": "1500",
    "slaveTimeout": "700",
    "fileReservedTime": "1000000",
    "cleanFileForciblyEnable": "false",
    "diskSpaceWarningLevelRatio": "100",
    "flushConsumerOffsetInterval": "200",
}
#: Stored on the master, but on no replica, as far as it knows.
STORED_ALONE: Final = {
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
}
#: Of messages that no load sends.
_OTHER_NUMBERS: Final = itertools.count(1 << 50)
_CLOCK_FOLDER: Final = Path(__file__).with_name("shifted_clock")
_CONNECTIONS: Final = 3
_IN_FLIGHT: Final = 3
_RETRY_SECONDS: Final = 0.02
_DISK_SIZE: Final = 256 * 1024 * 1024
#: Faults are so many bytes apart; reports of a replica are short.
_REACH: Final = {TO_CLIENT: 20_000, TO_TARGET: 300}
_DAY_NS: Final = 86_400 * 10**9
_RNG_MOMENT_SECONDS: Final = 0.25


class SteadyLoad(Load):
    """Sends on a thread of its own until it is told to stop, whatever becomes of the broker."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stored_alone: list[Acknowledged] = []
        self.other_answers: set[int] = set()
        self._is_stopping = False

    @contextmanager
    def running(self, address: str) -> Iterator[None]:
        """Send to this address meanwhile."""
        self._is_stopping = False
        failures: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(self.run(address, connections=_CONNECTIONS, in_flight=_IN_FLIGHT))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, name="load", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_stopping = True
            thread.join()
        if failures:
            raise failures[0]

    async def _send(self, client: RemotingClient, address: str) -> None:
        while not self._is_stopping:
            numbers = self.next_numbers()
            try:
                answer = await client.request(address, send_command(numbers), DEADLINE)
            except RemotingError:
                # Nobody knows whether these messages are stored: the next ones have other numbers.
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if answer.code == ResponseCode.SUCCESS:
                self.acknowledged += places_of(numbers, answer)
            elif answer.code in STORED_ALONE:
                self.stored_alone += places_of(numbers, answer)
                await asyncio.sleep(_RETRY_SECONDS)  # a master alone is fast: do not fill the disk
            else:
                self.other_answers.add(answer.code)
                await asyncio.sleep(_RETRY_SECONDS)


class ShiftedClock:
    """The wall clock of a child process (tests/support/shifted_clock)."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(8))
        self._file = file
        self.environment = {"PYROMQ_TEST_CLOCK": str(file)}

    def jump(self, nanoseconds: int) -> None:
        """Show another time from now on: so much more, or less, than the real one."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<q", nanoseconds))


class FaultyPair:
    """A master and a replica, between them a proxy, and everything that can go wrong.

    With one of Java's, no bytes are damaged: its format has no checksums.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        kinds: tuple[Kind, Kind] = ("pyromq", "pyromq"),
        small_disk: bool = False,
    ) -> None:
        """`kinds` are those of the master and of the replica; a small disk is the replica's."""
        self.choose = random.Random(seed)
        self.sent = SteadyLoad(seed)
        #: What was done to the pair, for the message of a failure.
        self.history: list[str] = []
        self._directory = directory
        self._kinds = kinds
        self._has_small_disk = small_disk
        self._has_jumped = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._namesrv = stack.enter_context(name_server())
            replica_directory = self._directory / "second"
            if self._has_small_disk:
                # Of the store alone: its log lines are for us.
                replica_directory.mkdir()
                stack.enter_context(small_disk(replica_directory / "store", _DISK_SIZE))
            self.proxy = stack.enter_context(Proxy(""))
            self._clocks: dict[Node, ShiftedClock] = {}
            master, replica = self._kinds
            self.master = self._make_node(master, self._directory / "first", Role.SYNC_MASTER)
            self.replica = self._make_node(replica, replica_directory, Role.SLAVE)
            self.proxy.target = self.master.ha_address
            for node in (self.master, self.replica):
                stack.callback(node.kill)
                node.start(wait=False)
            for node in (self.master, self.replica):
                node.wait_ready()
            # An empty Java replica begins with the newest segment: let it begin with the first.
            wait_until(lambda: asyncio.run(self._send_one()) == ResponseCode.SUCCESS)
            self._stack = stack.pop_all()
        return self

    async def _send_one(self) -> int:
        client = RemotingClient()
        try:
            command = send_command([next(_OTHER_NUMBERS)])
            return (await client.request(self.master.address, command, DEADLINE)).code
        finally:
            await client.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note("\n".join(["history:", *self.history]))
            for node in (self.master, self.replica):
                error.add_note(f"{node} logged:\n{node.log()[-3000:]}")
        self._stack.close()

    def _make_node(self, kind: Kind, directory: Path, role: Role) -> Node:
        settings = NodeSettings(
            directory,
            self._namesrv,
            role,
            ha_master_address=self.proxy.address if role is Role.SLAVE else "",
            properties=PROPERTIES,
        )
        if kind == "java":
            return make_node(kind, settings)
        clock = ShiftedClock(self._directory / f"{directory.name}.clock")
        environment = pyromq_environment()
        environment["PYTHONPATH"] = f"{_CLOCK_FOLDER}{os.pathsep}{environment['PYTHONPATH']}"
        environment["PYTHONFAULTHANDLER"] = "1"
        node = PyromqNode(settings, environment=environment | clock.environment)
        self._clocks[node] = clock
        return node

    def load(self) -> contextlib.AbstractContextManager[None]:
        """Send messages to the master meanwhile."""
        return self.sent.running(self.master.address)

    def wait_for_acknowledged(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        before = len(self.sent.acknowledged)
        wait_until(lambda: len(self.sent.acknowledged) >= before + count)

    def wait_for_stored_alone(self, count: int) -> None:
        """Wait until so many more messages are stored on the master without a replica."""
        before = len(self.sent.stored_alone)
        wait_until(lambda: len(self.sent.stored_alone) >= before + count)

    # Faults

    def choose_faults(self, max_count: int) -> None:
        """Do one thing after the other to the pair, at random moments."""
        for _ in range(self.choose.randint(1, max_count)):
            self._pass_moment()
            fault = self.choose.choice(self._faults())
            self.history.append(fault.__name__.strip("_"))
            fault()

    def _faults(self) -> list[Callable[[], None]]:
        faults = [
            self._kill_master,
            self._kill_replica,
            self._pause_one,
            self._cut,
            self._damage_bytes,
            self._damage_bytes,
            self._stall,
            self._tiny_writes,
            self._refuse,
        ]
        if "java" not in self._kinds:
            faults += [self._kill_both, self._restart_one]
            faults += [self._damage_new_connections, self._jump_clock]
        return [*faults, self._fill_disk] if self._has_small_disk else faults

    def _pass_moment(self, seconds: float = _RNG_MOMENT_SECONDS) -> None:
        """Let some time pass, so that the next fault comes at a random moment of the load."""
        time.sleep(self.choose.random() ** 2 * seconds)

    def _note(self, text: str) -> None:
        self.history.append(f"  {text}")

    def _kill_master(self) -> None:
        self.master.kill()
        self.master.start()

    def _kill_replica(self) -> None:
        self.replica.kill()
        self._pass_moment(1.0)
        self.replica.start()

    def _kill_both(self) -> None:
        nodes = [self.master, self.replica]
        self.choose.shuffle(nodes)
        for node in nodes:
            node.kill()
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_ready()

    def _restart_one(self) -> None:
        node = self.choose.choice([self.master, self.replica])
        self._note(f"the {node.role}")
        node.stop()
        node.start()

    def _pause_one(self) -> None:
        node = self.choose.choice([self.master, self.replica])
        self._note(f"the {node.role}")
        node.pause()
        self._pass_moment(self.choose.choice([0.3, 2.5]))
        node.resume()

    def _cut(self) -> None:
        self.proxy.cut(reset=self.choose.random() < 0.5)

    def _damage_bytes(self) -> None:
        """Damage the present connection, in either direction."""
        kinds = HARMLESS_FAULTS if "java" in self._kinds else _DAMAGES
        for direction in self._directions():
            for fault in random_faults(self.choose, kinds, _REACH[direction], 3):
                self._note(f"{fault} {direction.value}")
                self.proxy.inject(direction, fault)
        self._pass_moment(0.5)

    def _damage_new_connections(self) -> None:
        """Damage the next few connections from their first bytes on: negotiations."""
        numbers = range(self.proxy.connections, self.proxy.connections + 4)
        seed = self.choose.randrange(1 << 30)
        self._note(f"connections {numbers.start} to {numbers.stop} with {seed}")
        reach = self.choose.choice([300, 5_000])
        self.proxy.plan = _damage_of(numbers, seed, reach)
        self.proxy.cut()
        self._pass_moment(1.0)

    def _stall(self) -> None:
        directions = self._directions()
        self._note(", ".join(direction.value for direction in directions))
        self.proxy.stall(*directions)
        self._pass_moment(self.choose.choice([0.3, 2.5]))
        self.proxy.resume()

    def _tiny_writes(self) -> None:
        for direction in self._directions():
            size = self.choose.choice([100, 3_000])
            self.proxy.inject(direction, Split(0, size, self.choose.choice([1, 3, 7])))

    def _refuse(self) -> None:
        self.proxy.refuse()
        self._pass_moment(1.5)
        self.proxy.refuse(False)

    def _jump_clock(self) -> None:
        node = self.choose.choice([self.master, self.replica])
        shift = int(self.choose.choice([-400, -1, -0.01, 0, 0.01, 1, 400]) * _DAY_NS)
        self._note(f"the {node.role} by {shift / _DAY_NS:g} days")
        self._clocks[node].jump(shift)
        self._has_jumped = True

    def _fill_disk(self) -> None:
        """Leave no byte to the replica for some time; kill it meanwhile, now and then."""
        is_killed = self.choose.random() < 0.3
        with self.full_disk():
            self._pass_moment(2.0)
            if is_killed:
                self._note("and kill it")
                self.replica.kill()
        if is_killed:
            self.replica.start()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Leave no byte to the replica meanwhile."""
        ballast = self.replica.store / "ballast"
        fill(ballast)
        try:
            yield
        finally:
            ballast.unlink()

    def _directions(self) -> list[Direction]:
        return self.choose.choice([[TO_CLIENT], [TO_TARGET], [TO_CLIENT, TO_TARGET]])

    # Afterwards

    def heal(self) -> None:
        """End all faults, and wait until the replica has what the master has, by itself."""
        self.proxy.plan = harmless
        self.proxy.resume()
        self.history.append("heal")
        end = self.master.log_end()
        self.replica.wait_for_log_end(end, DEADLINE)
        assert self.replica.log_end() == end
        self.check_logs()

    def lose_master(self) -> None:
        """Kill the master at some moment and delete its store."""
        self._pass_moment()
        self.master.kill()
        self.master.wipe()
        self.history.append("the master is lost")

    def promote(self) -> None:
        """Promote the replica of a lost master, which becomes its replica, with an empty store."""
        lost, promoted = self.master, self.replica
        command = [sys.executable, "-m", "pyromq", "broker", "promote", promoted.address]
        done = subprocess.run(
            [*command, "--role", "SYNC_MASTER"],
            capture_output=True,
            text=True,
            env={**os.environ, **pyromq_environment()},
            timeout=2 * DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # As the file of the promoted broker says now.
        promoted.settings.role, promoted.settings.ha_master_address = Role.SYNC_MASTER, ""
        lost.settings.role, lost.settings.ha_master_address = Role.SLAVE, self.proxy.address
        self.proxy.target = promoted.ha_address
        self.master, self.replica = promoted, lost

    # Checks

    def check_logs(self) -> None:
        """Both logs are the same. They must rest."""
        assert_same_logs(self.master.store, self.replica.store)
        for node in (self.master, self.replica):
            assert "Traceback" not in node.log(), node.log()
            assert "replication stopped" not in node.log(), node.log()

    def check_files(self) -> None:
        """Both stores are sound, the same, and have everything acknowledged. Stops the nodes."""
        for node in (self.replica, self.master):
            node.stop()
        self.check_logs()
        for node in (self.master, self.replica):
            if node.kind == "pyromq":
                assert self._violations(node) == [], node
        # The logs are the same byte by byte: one of them is enough.
        verifier = Verifier(self.sent.acknowledged + self.sent.stored_alone)
        for record in records_of(self.replica.store):
            verifier.take(record)
        verifier.finish()

    def _violations(self, node: Node) -> list[str]:
        """Return what `pyromq store check` finds, except for times that a jump turned around."""
        found = [str(violation) for violation in check_store(node.store)]
        if self._has_jumped:
            found = [text for text in found if "index header: states times" not in text]
        return found


#: Kinds of `_damage_bytes`; without Stall, which nothing would end.
_DAMAGES: Final = [kind for kind in ALL_FAULTS if kind is not Stall]


def _damage_of(numbers: range, seed: int, reach: int) -> Plan:
    def plan(number: int) -> Script:
        choose = random.Random(f"{seed} {number}")
        if number not in numbers:
            return Script()
        return Script(*(random_faults(choose, _DAMAGES, reach, 2) for _ in Direction))

    return plan


def records_of(store_directory: Path) -> list[MessageRecord]:
    """Return every record of a store that nothing serves."""
    store = open_store(store_directory, **STORE_SETTINGS)
    try:
        return log_records(store)
    finally:
        store.stop()


def fill(ballast: Path) -> None:
    """Let a file grow until its disk is full."""
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65_536))
