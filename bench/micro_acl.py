"""Measures what access control costs per send, in one process and without a network.

    .venv/bin/python bench/micro_acl.py                  with the compiled kernel
    PYROMQ_PURE=1 .venv/bin/python bench/micro_acl.py    with Python code only

First the steps of the Python code: the signature alone, and the whole verdict. Then a broker of
this process reads chunks of 64 signed sends of 128 B, as from a socket, with access control off
and on, compatible and strict, in turn; the difference is its cost. Prints CPU time per send: the
lowest and the median of all rounds. Not part of `make bench`.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from pyromq.acl import classification
from pyromq.acl.rules import Account, Permission, Rules
from pyromq.acl.settings import AclMode
from pyromq.acl.signature import is_signed_by
from pyromq.acl.validation import Validator
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.protocol import kernel
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.connection import Connection
from pyromq.store.config import MessageStoreConfig

BODY_SIZE = 128
FRAMES = 64
ROUNDS = 15
CHUNKS = 50
CALLS = 3200
ACCOUNT = Account("benchmark_key", "benchmark_secret", default_topic=Permission.PUB)
FILE = (
    f"accounts:\n- {{accessKey: {ACCOUNT.access_key}, secretKey: {ACCOUNT.secret_key}, "
    "defaultTopicPerm: PUB}\n"
)


def main() -> None:
    """Print the table."""
    print(f"compiled kernel: {'yes' if kernel.load('signatures') is not None else 'no'}")
    print("µs per send                          lowest  median")
    fields, body = send(0).ext_fields, send(0).body
    validator = Validator(Rules({ACCOUNT.access_key: ACCOUNT}), strict=True)
    code, access = RequestCode.SEND_MESSAGE_V2, classification.SEND_V2
    report("signature, in Python", lambda: is_signed_by(ACCOUNT, fields, body))
    report("verdict, in Python", lambda: validator.check("10.0.0.1", code, access, fields, body))
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure_brokers(Path(directory)))


def report(name: str, call: Callable[[], object]) -> None:
    """Print the time of one call."""
    rounds = timeit.repeat(call, timer=time.thread_time, number=CALLS, repeat=ROUNDS)
    show(name, [each / CALLS * 1e6 for each in rounds])


def show(name: str, micros: list[float]) -> None:
    """Print one line."""
    print(f"{name:36} {min(micros):6.2f}  {statistics.median(micros):6.2f}")


def send(number: int) -> RemotingCommand:
    """Return a signed send, with the fields and properties of a Java producer."""
    properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    values = ("benchmark", "Orders", "TBW102", "4", "0", "0", "1700000000000", "0", properties)
    fields = dict(zip("abcdefghi", values, strict=True)) | {"j": "0", "k": "false", "m": "false"}
    body = (b"%08d" % number).ljust(BODY_SIZE, b"x")
    acl.sign(fields, body, ACCOUNT.access_key, ACCOUNT.secret_key)
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, fields, body)


async def measure_brokers(directory: Path) -> None:
    """Print the time that a broker takes, with and without access control."""
    chunk = b"".join(send(number).encode() for number in range(FRAMES))
    (directory / "conf").mkdir()
    path = directory / "conf/plain_acl.yml"
    path.write_text(FILE)
    path.chmod(0o600)
    kinds: dict[str, AclMode | None] = {"off": None, **{each.name: each for each in AclMode}}
    async with AsyncExitStack() as stack:
        connections = {}
        for name, mode in kinds.items():
            broker = await started(directory, name, mode)
            stack.push_async_callback(broker.stop)
            connections[name] = Peer(broker)
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(ROUNDS):
            for name, connection in connections.items():
                found[name].append(await connection.time_of(chunk))
    for name, micros in found.items():
        show(f"broker, access control {name}", micros)
    for name in kinds.keys() - {"off"}:
        lowest = min(found[name]) - min(found["off"])
        median = statistics.median(found[name]) - statistics.median(found["off"])
        print(f"{f'  cost of {name}':36} {lowest:6.2f}  {median:6.2f}")


async def started(directory: Path, name: str, mode: AclMode | None) -> Broker:
    """Return a running broker."""
    config = BrokerConfig(
        bind_address="127.0.0.1",
        broker_ip1="127.0.0.1",
        listen_port=0,
        broker_name=name,
        acl_enable=mode is not None,
        acl_mode=mode or AclMode.compatible,
        acl_replay_window_millis=0,
        rocketmq_home=str(directory),
        broker_fast_failure_enable=False,
    )
    store = MessageStoreConfig(
        store_path_root_dir=str(directory / name), mapped_file_size_commit_log=256 * 1024 * 1024
    )
    broker = Broker(config, store)
    await broker.start()
    return broker


class Peer(asyncio.Transport):
    """The other end of a connection that has no socket; it drops the responses."""

    def __init__(self, broker: Broker) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._connection = Connection(broker._servers[0], asyncio.get_running_loop())
        self._connection.connection_made(self)
        self._store = broker.store
        self._written = 0

    async def time_of(self, chunk: bytes) -> float:
        """Return the microseconds of CPU per send, for `CHUNKS` chunks."""
        spent, self._written = 0, 0
        assert self._store is not None
        before_all = self._store.max_physical_offset
        for _ in range(CHUNKS):
            before = time.thread_time_ns()
            self._connection.data_received(chunk)
            spent += time.thread_time_ns() - before
            await asyncio.sleep(0)
        assert self._written, "nothing was answered"
        assert self._store.max_physical_offset > before_all + CHUNKS * FRAMES * BODY_SIZE
        return spent / 1000 / (CHUNKS * FRAMES)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Count a response."""
        self._written += len(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Count responses."""
        self._written += sum(map(len, list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return 0: the peer reads everything at once."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing."""

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def write_eof(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Leave the server."""
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    abort = close


if __name__ == "__main__":
    main()
