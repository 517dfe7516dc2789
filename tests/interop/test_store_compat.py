"""Stores of many topics and many small files, written by one implementation, opened by the other.

Both brokers get the same traffic, more of it while they are killed. Copies of what is left are
opened by both: messages, offsets by time and by key must be equal, and what is made of the log
byte by byte. Starting Java is what costs, so the tests share two stores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pyromq.broker.config import load_broker_properties
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    decode_record,
    decode_records,
    peek,
)
from pyromq.protocol.message.sysflag import BORN_HOST_V6
from pyromq.protocol.message.units import CHECKPOINT, CONSUME_QUEUE_ENTRY, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store.message_store import MessageStore
from pyromq.store.results import StoreError
from tests.interop.java_programs import javac_or_skip
from tests.interop.raw_broker import QUEUES, RawBroker, Seed
from tests.interop.servers import PyromqServer
from tests.interop.store_survey import (
    BUSY_TOPIC,
    DELAY_TOPIC,
    QUEUE_ENTRIES,
    SEGMENT,
    SETTINGS,
    Survey,
    compat_seeds,
    delayed_seeds,
    derived_files,
    differing,
    java_opens,
    log_records,
    offset_by_time,
    pull_all,
    queue_limits,
    seeds_at_the_limits,
    survey,
)
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.stores import put

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

LOAD_TOPIC = "CompatLoad"
#: The broker is killed when so many messages of the load were acknowledged. Not where a file of
#: the queue is full: Java takes a file that was made and never written to for one with an entry.
LOAD = 170
DELAYED = 5
DELAY_QUEUE = f"consumequeue/{DELAY_TOPIC}/17/{0:020}"

Server = PyromqServer | ApacheRocketMQ


@dataclass
class Written:
    """A store that a broker was killed on, and what it had served and acknowledged before."""

    store: Path
    sent: list[Seed]
    served: Survey
    #: What the log's records were when the common traffic was stored, by offset.
    log: list[tuple[int, bytes]]
    #: The codes that messages at the limits were answered with.
    codes: list[int]
    #: Queue offsets and bodies of the load.
    acknowledged: dict[int, bytes] = field(default_factory=dict)


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    java_or_skip()
    javac_or_skip()


@pytest.fixture(scope="module")
def by_java(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Written:
    store = tmp_path_factory.mktemp("compat") / "java"
    return asyncio.run(write_and_kill(apache(store, namesrv), store, delayed_seeds(DELAYED)))


@pytest.fixture(scope="module")
def by_pyromq(tmp_path_factory: pytest.TempPathFactory) -> Written:
    store = tmp_path_factory.mktemp("compat") / "pyromq"
    return asyncio.run(write_and_kill(pyromq(store), store, []))


def pyromq(store: Path, **changes: str) -> Server:
    # As Java does, it listens on every address of both families.
    settings = {"bindAddress": "::", **SETTINGS, **changes}
    return PyromqServer(store=store, broker_properties=settings)


def apache(store: Path, namesrv: str, **changes: str) -> Server:
    return ApacheRocketMQ(
        store=store,
        broker_properties={**SETTINGS, **changes},
        broker_only=True,
        namesrv_address=namesrv,
        jvm_options=QUICK_JVM_OPTIONS,
    )


async def write_and_kill(server: Server, store: Path, only_java: list[Seed]) -> Written:
    sent = compat_seeds("first")
    by_ipv6 = compat_seeds("sixth", busy=0, rounds=2)
    with running(server):
        async with connected(server) as broker:
            for seed in sent:
                await broker.send(seed)
            async with connected(server, "::1") as over_ipv6:
                for seed in by_ipv6:
                    await over_ipv6.send(seed)
            answers = [await broker.try_send(seed) for seed in seeds_at_the_limits()]
            served = await survey(broker, sent + by_ipv6)
            codes = [answer.code for answer in answers]
            written = Written(store, sent + by_ipv6, served, list(log_records(store)), codes)
            for seed in only_java:
                await broker.send(seed)
        await load_until_killed(server, written)
    assert (store / "abort").exists()
    return written


async def load_until_killed(server: Server, written: Written, count: int = LOAD) -> None:
    """Send on several connections, and kill the broker in the middle of it."""
    enough = asyncio.Event()

    async def send(broker: RawBroker, worker: int, number: int) -> None:
        body = f"{worker} {number} ".encode() * 50
        seed = Seed(LOAD_TOPIC, 0, [body], {"KEYS": f"load-{worker}-{number}"})
        answer = await broker.send(seed)
        written.acknowledged[answer.queue_offset] = body

    async def send_forever(worker: int) -> None:
        async with connected(server) as broker:
            for number in itertools.count(1):
                await send(broker, worker, number)
                if len(written.acknowledged) >= count:
                    enough.set()

    # When the sender of the first message is answered, the topic is on the disk: what others
    # send before makes only pyromq know it again.
    async with connected(server) as broker:
        await send(broker, 4, 1)
    workers = [asyncio.create_task(send_forever(worker)) for worker in range(4)]
    await asyncio.wait_for(enough.wait(), 30.0)
    server.kill()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


@pytest.mark.parametrize("image", ["killed", "no-checkpoint", "from-nothing"])
async def test_pyromq_serves_what_java_wrote(by_java: Written, image: str, tmp_path: Path) -> None:
    store = copied(by_java, image, tmp_path)
    with running(pyromq(store)) as server:
        async with connected(server) as broker:
            assert_same(await survey(broker, by_java.sent), by_java.served)
            await assert_load_is_there(broker, by_java)
            await assert_times_are_found(broker)
            await assert_goes_on(broker, by_java)


async def test_delayed_messages_of_java_go_on_waiting(by_java: Written, tmp_path: Path) -> None:
    """Two of them were delivered by Java, the others are not due for hours."""
    store = copied(by_java, "killed", tmp_path)
    progress = store / "config" / "delayOffset.json"
    progress.write_bytes(b'{"offsetTable":{18:2}}')
    waiting = derived_files(store)[DELAY_QUEUE]
    with running(pyromq(store)) as server:
        server.stop()
    assert progress.read_bytes() == b'{\n\t"offsetTable":{18:2\n\t}\n}'
    assert derived_files(store)[DELAY_QUEUE] == waiting
    assert waiting.count(b"\0" * 20) < len(waiting) // 20 - DELAYED + 1


async def test_java_is_refused_while_pyromq_runs(by_pyromq: Written, tmp_path: Path) -> None:
    """Java loads a store, and recovers it, before it looks at the lock: nothing may be hurt."""
    store = copied(by_pyromq, "killed", tmp_path)
    more = compat_seeds("while-locked", busy=300)
    with running(pyromq(store)) as server:
        with pytest.raises(AssertionError, match="Lock failed,MQ already started"):
            java_opens(tmp_path, store)
        async with connected(server) as broker:
            assert_same(await survey(broker, by_pyromq.sent), by_pyromq.served)
            for seed in more:
                await broker.send(seed)
            served = await survey(broker, by_pyromq.sent + more)
        server.stop()
    with running(pyromq(store)) as server:
        async with connected(server) as broker:
            assert_same(await survey(broker, by_pyromq.sent + more), served)


async def test_java_serves_what_pyromq_wrote(
    by_pyromq: Written, namesrv: str, tmp_path: Path
) -> None:
    store = copied(by_pyromq, "killed", tmp_path)
    with running(apache(store, namesrv)) as server:
        async with connected(server) as broker:
            assert_same(await survey(broker, by_pyromq.sent), by_pyromq.served)
            await assert_load_is_there(broker, by_pyromq)
            await assert_goes_on(broker, by_pyromq)
            with pytest.raises(StoreError, match="in use by another broker"):
                opened_here(store)


@pytest.mark.parametrize(
    "images",
    [
        pytest.param(("killed", "from-nothing", "clean-from-nothing"), id="whole-log"),
        pytest.param(
            ("no-checkpoint", "headless", "headless-from-nothing"), marks=pytest.mark.soak
        ),
    ],
)
def test_both_make_the_same_of_a_log(
    images: tuple[str, ...], by_java: Written, by_pyromq: Written, tmp_path: Path
) -> None:
    """From every state that a store can be found in, whoever wrote it."""
    assert_both_make_the_same([by_java, by_pyromq], images, tmp_path)


def test_the_same_traffic_makes_the_same_log(by_java: Written, by_pyromq: Written) -> None:
    """Sizes, order, roll points and every byte but times and addresses."""
    assert by_pyromq.codes == by_java.codes
    assert len(set(by_java.codes)) > 1
    assert len(by_java.log) == len(by_pyromq.log) > 1000
    for (offset, theirs), (other_offset, ours) in zip(by_java.log, by_pyromq.log, strict=True):
        assert other_offset == offset
        assert comparable(ours) == comparable(theirs), offset


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_handed_over_again_and_again(namesrv: str, tmp_path: Path) -> None:
    """By clean stops and by kills; each one writes, and finds what all before it wrote."""
    store = tmp_path / "store"
    sent: list[Seed] = []
    served = Survey()
    ends = ("stop", "stop", "kill", "kill", "stop", "stop", "kill")
    for number, end in enumerate(ends):
        server = pyromq(store) if number % 2 else apache(store, namesrv)
        with running(server):
            async with connected(server) as broker:
                if sent:
                    assert_same(await survey(broker, sent), served)
                if number == 0:
                    for seed in delayed_seeds(3) + delayed_seeds(2, level=4):
                        await broker.send(seed)
                more = compat_seeds(f"round-{number}", busy=150, rounds=3)
                for seed in more:
                    await broker.send(seed)
                sent += more
                served = await survey(broker, sent)
                if number == 2:
                    # Half a minute after the first round they were due, whoever ran meanwhile.
                    delivered = await when_delivered(broker, 2)
                elif number > 2:
                    # A killed broker of Java's delivers again what it delivered last.
                    later = await pull_all(broker, "CompatLater", 1, 0, 2)
                    assert later.startswith(delivered)
            if end == "stop":
                server.stop()
            else:
                server.kill()
        if number == 0:
            progress = json.loads((store / "config" / "delayOffset.json").read_bytes())
            assert progress["offsetTable"].keys() <= {str(level) for level in range(1, 19)}
    queues = {n: data for n, data in derived_files(store).items() if n.startswith("consumequeue")}
    rebuilt = tmp_path / "rebuilt"
    shutil.copytree(store, rebuilt)
    for name in ("consumequeue", "index"):
        shutil.rmtree(rebuilt / name)
    opened_here(rebuilt).stop()
    again = {n: data for n, data in derived_files(rebuilt).items() if n.startswith("consumequeue")}
    assert differing(queues, again) == []


async def when_delivered(broker: RawBroker, count: int) -> bytes:
    """The messages of the delayed ones' topic, once so many were delivered."""
    deadline = time.monotonic() + 60.0
    while (await queue_limits(broker, "CompatLater", 1))[1] < count:
        assert time.monotonic() < deadline, "delayed messages were never delivered"
        await asyncio.sleep(0.2)
    return await pull_all(broker, "CompatLater", 1, 0, count)


@pytest.mark.soak
async def test_java_killed_with_a_transient_store_pool(namesrv: str, tmp_path: Path) -> None:
    """Messages that Java had only in its buffer are not in the log: it ends before them."""
    store = tmp_path / "java"
    server = apache(store, namesrv, transientStorePoolEnable="true")
    written = await write_and_kill(server, store, delayed_seeds(DELAYED))
    assert_both_make_the_same([written], ("killed", "no-checkpoint", "from-nothing"), tmp_path)
    with running(pyromq(copied(written, "killed", tmp_path))) as server:
        async with connected(server) as broker:
            assert_same(await survey(broker, written.sent), written.served)
            await assert_goes_on(broker, written)


@pytest.mark.soak
async def test_brokers_with_an_ipv6_address(namesrv: str, tmp_path: Path) -> None:
    host = {"brokerIP1": "::1"}
    java, python = tmp_path / "java", tmp_path / "pyromq"
    by_java = await write_and_kill(apache(java, namesrv, **host), java, delayed_seeds(DELAYED))
    by_pyromq = await write_and_kill(pyromq(python, **host), python, [])
    assert by_java.codes == by_pyromq.codes
    assert_both_make_the_same([by_java, by_pyromq], ("killed", "from-nothing"), tmp_path)
    with running(pyromq(copied(by_java, "killed", tmp_path / "to-pyromq"), **host)) as server:
        async with connected(server) as broker:
            assert_same(await survey(broker, by_java.sent), by_java.served)
            await assert_goes_on(broker, by_java)
    store = copied(by_pyromq, "killed", tmp_path / "to-java")
    with running(apache(store, namesrv, **host)) as server:
        async with connected(server) as broker:
            assert_same(await survey(broker, by_pyromq.sent), by_pyromq.served)
            await assert_goes_on(broker, by_pyromq)


@pytest.mark.soak
async def test_pyromq_killed_in_the_middle_of_load(tmp_path: Path) -> None:
    """Wherever the kill falls, both find the same."""
    killed = []
    for number in range(6):
        store = tmp_path / f"pyromq-{number}"
        written = Written(store, [], Survey(), [], [])
        server = pyromq(store)
        with running(server):
            await load_until_killed(server, written, count=60 + 177 * number)
        killed.append(written)
    assert_both_make_the_same(killed, ("killed", "from-nothing"), tmp_path)
    for written in killed:
        opened = opened_here(copied(written, "killed", tmp_path, f"{written.store.name}-read"))
        try:
            assert opened.max_offset(LOAD_TOPIC, 0) > max(written.acknowledged)
        finally:
            opened.stop()


@pytest.mark.soak
def test_a_queue_file_without_entries_is_not_left_to_java(namesrv: str, tmp_path: Path) -> None:
    """Java would take it for one with an entry, and count the next messages from there."""
    store = opened_here(tmp_path / "pyromq")
    for _ in range(QUEUE_ENTRIES):
        put(store, topic=LOAD_TOPIC)
    store.seal()
    store.queue(LOAD_TOPIC, 0).extend()
    store.queue(LOAD_TOPIC, 1).extend()
    assert len(list((tmp_path / "pyromq").glob("consumequeue/*/*/*"))) == 3
    store.stop()
    seen = java_opens(tmp_path, tmp_path / "pyromq")["pyromq"]
    assert seen["queues"] == {f"{LOAD_TOPIC}/0": [0, QUEUE_ENTRIES]}
    assert seen["end"] == sum(len(record) for _, record in log_records(tmp_path / "pyromq"))


def vouched_for(store: Path) -> tuple[int, int, int]:
    """Up to which store times log, queues and index are on the disk."""
    log, queues, index = CHECKPOINT.unpack_from((store / "checkpoint").read_bytes())
    return log, queues, index


@pytest.mark.soak
@pytest.mark.parametrize("writer", ["java", "pyromq"])
async def test_a_checkpoint_says_enough_for_both(writer: str, namesrv: str, tmp_path: Path) -> None:
    """Everything that the checkpoint does not vouch for may be lost: both make it again."""
    store = tmp_path / writer
    # Java writes its checkpoint once a minute, if it is not told to do so more often.
    often = {"flushConsumeQueueThoroughInterval": "1000", "flushCommitLogThoroughInterval": "1000"}
    server = apache(store, namesrv, **often) if writer == "java" else pyromq(store, **often)
    with running(server):
        async with connected(server) as broker:
            began, number, stored = time.monotonic(), 0, 0.0
            # Longer than the flush intervals and the three seconds that recovery goes back, and
            # until there is something that the checkpoint does not know yet.
            while time.monotonic() < began + 9.0 or vouched_for(store)[1] > stored - 300:
                assert time.monotonic() < began + 60.0
                for _ in range(20):
                    number += 1
                    place = f"Compat{number % 7:02}", number % QUEUES
                    await broker.send(Seed(*place, [b"%06d" % number * 600], {"TAGS": "t"}))
                stored = time.time() * 1000
                await asyncio.sleep(0.05)
        server.kill()
    log_time, queue_time, _ = vouched_for(store)
    times = {
        offset: decode_record(record).store_timestamp
        for offset, record in log_records(store)
        if peek(record)[1] != BLANK_MAGIC
    }
    safe = min(log_time, queue_time) - 3000
    began_late = [t for offset, t in times.items() if offset % SEGMENT == 0 and 0 < t <= safe]
    assert len(began_late) > 1, "recovery begins at the log's beginning: nothing is tested"
    whole = derived_files(store)
    lost = 0
    for path in (store / "consumequeue").rglob("0*"):
        data = path.read_bytes() if path.is_file() else b""
        for start in range(0, len(data), CONSUME_QUEUE_ENTRY_SIZE):
            physical, size, _ = CONSUME_QUEUE_ENTRY.unpack_from(data, start)
            if size and times[physical] > queue_time:
                path.write_bytes(data[:start].ljust(len(data), b"\0"))
                lost += 1
                break
    assert lost
    written = Written(store, [], Survey(), [], [])
    assert_both_make_the_same([written], ("killed",), tmp_path)
    made = derived_files(tmp_path / "ours" / f"{writer}-killed")
    assert (
        differing(
            {name: data for name, data in made.items() if name.startswith("consumequeue")},
            {name: data for name, data in whole.items() if name.startswith("consumequeue")},
        )
        == []
    )


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """A started server that is ended at once, however the block ends."""
    try:
        server.start()
        yield server
    finally:
        server.clean_up() if isinstance(server, PyromqServer) else server.kill()


@asynccontextmanager
async def connected(server: Server, host: str = "") -> AsyncIterator[RawBroker]:
    own_host, port = server.broker_address.rsplit(":", 1)
    broker = RawBroker(f"{host or own_host}:{port}")
    try:
        yield broker
    finally:
        await broker.close()


def copied(written: Written, image: str, directory: Path, name: str = "store") -> Path:
    """A copy of a killed store, of which files may be missing."""
    store = directory / name
    shutil.copytree(written.store, store)
    if image.startswith("headless"):
        min((store / "commitlog").iterdir()).unlink()
    if image not in ("killed", "headless"):
        (store / "checkpoint").unlink(missing_ok=True)
    if image.endswith("from-nothing"):
        shutil.rmtree(store / "consumequeue")
        shutil.rmtree(store / "index")
    if image.startswith("clean"):
        (store / "abort").unlink()
    return store


def opened_here(root: Path) -> MessageStore:
    config = load_broker_properties({**SETTINGS, "storePathRootDir": str(root)}).store
    store = MessageStore(config, encode_host("127.0.0.1", 10911))
    store.start()
    return store


def made_of_log(root: Path) -> dict[str, bytes]:
    """All derived files but the queues of delayed messages.

    Java's recovery, unlike its dispatch, runs before it knows the delay levels: it leaves the
    hash of the tags where the time of delivery belongs.
    """
    files = derived_files(root)
    return {name: data for name, data in files.items() if DELAY_TOPIC not in name}


def assert_both_make_the_same(
    stores: Iterable[Written], images: Iterable[str], directory: Path
) -> None:
    """Let both open copies of the same stores; what they see and make of them must be equal."""
    pairs = []
    for written, image in itertools.product(stores, images):
        name = f"{written.store.name}-{image}"
        ours = copied(written, image, directory / "ours", name)
        pairs.append((ours, copied(written, image, directory / "theirs", name)))
    seen = java_opens(directory, *(theirs for _, theirs in pairs))
    for ours, theirs in pairs:
        name = ours.name
        store = opened_here(ours)
        log_end = store.max_physical_offset
        ends = {f"{q.topic}/{q.queue_id}": (q.min_offset, q.next_offset) for q in store.queues()}
        store.stop()
        assert log_end == seen[name]["end"], name
        assert ends.keys() == seen[name]["queues"].keys(), name
        for queue, (their_first, their_end) in seen[name]["queues"].items():
            first, end = ends[queue]
            assert end == their_end, (name, queue)
            # Java looks for the first message in the first file only, until it removes that one.
            assert first == their_first or first >= QUEUE_ENTRIES, (name, queue)
        assert differing(made_of_log(ours), made_of_log(theirs)) == [], name
        # Java stopped cleanly: there is nothing to do for the next one.
        opened_here(theirs).stop()
        assert differing(made_of_log(ours), made_of_log(theirs)) == [], name


def assert_same(found: Survey, wanted: Survey) -> None:
    """Part by part and key by key: whole bytes would fill the screen."""
    for part in ("limits", "records", "by_id", "by_key", "by_time"):
        ours, theirs = getattr(found, part), getattr(wanted, part)
        assert ours.keys() == theirs.keys(), part
        differ = [(key, ours[key], theirs[key]) for key in ours if ours[key] != theirs[key]]
        assert not differ, f"{part}: {differ[:3]!r:.2000}"


async def assert_load_is_there(broker: RawBroker, written: Written) -> None:
    first, end = await queue_limits(broker, LOAD_TOPIC, 0)
    data = await pull_all(broker, LOAD_TOPIC, 0, first, end)
    bodies = dict(zip(range(first, end), bodies_of(data), strict=True))
    lost = {n for n, body in written.acknowledged.items() if bodies.get(n) != body}
    assert not lost


async def assert_times_are_found(broker: RawBroker) -> None:
    """In a queue of many files: a message of that time, be it the first of them or not."""
    first, end = await queue_limits(broker, BUSY_TOPIC, 0)
    data = await pull_all(broker, BUSY_TOPIC, 0, first, end)
    times = [record.store_timestamp for record in decode_records(data)]
    for number in range(0, end - first, 23):
        found = await offset_by_time(broker, BUSY_TOPIC, 0, times[number])
        assert times[found - first] == times[number]


async def assert_goes_on(broker: RawBroker, written: Written) -> None:
    """The next message of each queue gets the next offset."""
    for (topic, queue_id), (_, end) in written.served.limits.items():
        answer = await broker.send(Seed(topic, queue_id, [b"goes on"]))
        assert answer.queue_offset == end


def bodies_of(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        record = decode_record(data, position)
        position += record.size
        yield record.body


def comparable(record: bytes) -> object:
    """A record without its times and hosts; properties as a table, for Java does not order them."""
    if peek(record)[1] == BLANK_MAGIC:
        return record[:BLANK_SIZE]
    decoded = decode_record(record)
    length = len(decoded.raw_properties)
    hosts_end = 72 + (12 if decoded.sys_flag & BORN_HOST_V6 else 0)
    return record[:40], record[hosts_end : len(record) - length], decoded.properties
