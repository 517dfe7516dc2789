"""Damaged files: a start recovers up to the damage or refuses by the file's name.

A broker is started on a copy of a store that was stopped, or killed, and then damaged in
one place. Whatever it serves then was sent. Where a start does not look, since it must not
take longer with every segment that was clean, the damage may stay: then `check_store` has
named it before, as it has every other damage that costs a message of a clean store.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.state.persistence import PersistenceError
from pyromq.protocol.message.record import MessageRecord, RecordError, decode_records
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from pyromq.store.results import GetStatus, StoreError
from tests.support.brokers import local_broker
from tests.support.crash import QUEUES, body_of, properties_of, seeds, send_command
from tests.support.patience import DEADLINE, wait_until
from tests.support.stores import FOREVER, log_records, small_config

SETTINGS = {
    "mapped_file_size_commit_log": 128 * 1024,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 64,
    "max_index_num": 256,
    "flush_interval_commit_log": 5,
    "flush_interval_consume_queue": 5,
    "flush_consume_queue_least_pages": 0,
}
MESSAGES = 500


@dataclass(frozen=True)
class Templates:
    """A store that was stopped cleanly, and what a kill left of it before."""

    clean: Path
    killed: Path
    #: Every message by its number.
    messages: dict[int, MessageRecord]


@dataclass(frozen=True)
class Damage:
    """What was done to a store."""

    words: str
    path: Path
    #: The bytes of the file that are no longer what they were.
    start: int = 0
    end: int = 1 << 62

    @property
    def in_log(self) -> bool:
        return self.path.parent.name == "commitlog" and self.path.name.isdecimal()

    @property
    def looks_like_retention(self) -> bool:
        """The first segments of the log, and the first files of the index, go when they are old."""
        return (
            self.path.parent.name in ("commitlog", "index")
            and not self.path.exists()
            and all(self.path.name < other.name for other in self.path.parent.iterdir())
        )

    def first_of_log(self) -> int:
        """The first offset of the log that is not what it was."""
        return int(self.path.name) + self.start if self.in_log else 1 << 62

    def touches(self, record: MessageRecord) -> bool:
        base = int(self.path.name) if self.in_log else 1 << 62
        begin = record.physical_offset
        return begin < base + self.end and base + self.start < begin + record.size


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return asyncio.run(make_templates(tmp_path_factory.mktemp("templates")))


async def make_templates(directory: Path) -> Templates:
    clean, killed = directory / "clean", directory / "killed"
    broker = broker_on(clean)
    await broker.start()
    client = RemotingClient()
    try:
        number = 0
        chooser = random.Random(7)
        while number < MESSAGES:
            queue = chooser.randrange(len(QUEUES))
            count = chooser.choice((1, 1, 3, 9))
            numbers = [(number + at) * len(QUEUES) + queue for at in range(count)]
            number += count
            answer = await client.request(broker.address, send_command(numbers), DEADLINE)
            assert answer.code == 0, answer
        broker.offsets.commit("group", "orders", 0, 5)
        store = broker.store
        assert store is not None
        wait_until(lambda: store.dispatch_behind == 0)
        for table in (broker.topics, broker.groups, broker.offsets):
            table.file.save()
        shutil.copytree(clean, killed)
        records = log_records(store)
    finally:
        await client.close()
        await broker.stop()
    return Templates(clean, killed, {number_of(record): record for record in records})


def config_on(root: Path) -> MessageStoreConfig:
    return small_config(root, **SETTINGS)


def broker_on(root: Path) -> Broker:
    config = local_broker(
        broker_name="damaged",
    )
    return Broker(config, config_on(root))


def number_of(record: MessageRecord) -> int:
    return int(record.body.partition(b":")[0])


def damage(root: Path, chooser: random.Random) -> Damage:
    """Do something bad to one file or folder of a store."""
    kinds = {
        "log": root.glob("commitlog/*"),
        "queue": root.glob("consumequeue/*/*/*"),
        "index": root.glob("index/*"),
        "table": root.glob("config/*"),
        "mark": iter([root / "checkpoint", root / "lock", root / "abort"]),
    }
    kind = chooser.choice(["log", "log", "queue", "queue", "index", "table", "mark"])
    files = sorted(path for path in kinds[kind] if path.is_file())
    if not files or chooser.random() < 0.1:
        return _misplace(root, chooser)
    path = chooser.choice(files)
    data = bytearray(path.read_bytes())
    name = path.relative_to(root)
    action = chooser.choice(["flip", "flip", "zero", "garbage", "cut", "grow", "delete", "empty"])
    used = max(1, len(data.rstrip(b"\0")))
    start = chooser.randrange(used)
    if action == "delete":
        path.unlink()
        return Damage(f"delete {name}", path)
    if action == "empty":
        path.write_bytes(b"")
        return Damage(f"empty {name}", path)
    if action == "cut":
        path.write_bytes(data[:start])
        return Damage(f"cut {name} at {start}", path, start)
    if action == "grow":
        path.write_bytes(data + b"more")
        return Damage(f"grow {name}", path, len(data))
    length = 1 if action == "flip" else chooser.choice((1, 8, 20, 100, 5000))
    end = min(start + length, len(data))
    if action == "flip" and data:
        data[start] ^= 1 << chooser.randrange(8)
    elif action == "zero":
        data[start:end] = bytes(end - start)
    else:
        data[start:end] = chooser.randbytes(end - start)
    path.write_bytes(data)
    return Damage(f"{action} {name} from {start} to {end}", path, start, end)


def _misplace(root: Path, chooser: random.Random) -> Damage:
    """A foreign file or folder, or a whole folder that is gone."""
    folder = chooser.choice(["", "commitlog", "consumequeue", "consumequeue/orders", "index"])
    action = chooser.choice(["file", "folder", "remove", "number"])
    path = root / folder
    if action == "remove" and folder not in ("", "commitlog"):
        shutil.rmtree(path)
        return Damage(f"remove {folder}", path)
    if action == "number":
        path /= f"{chooser.choice((7, 1 << 40)):020d}"
        path.write_bytes(b"not a segment")
    elif action == "folder":
        path /= "foreign"
        (path / "0").mkdir(parents=True)
    else:
        path /= "foreign.tmp"
        path.write_bytes(b"foreign")
    return Damage(f"{action} {path.relative_to(root)}", path)


async def start_and_judge(templates: Templates, root: Path, seed: int) -> None:
    """Damage a copy of a store, start a broker on it, and see that nothing wrong comes of it."""
    chooser = random.Random(seed)
    clean = chooser.random() < 0.5
    shutil.copytree(templates.clean if clean else templates.killed, root)
    done = damage(root, chooser)
    said = f"{'clean' if clean else 'killed'} store, {done.words}"
    named = [str(violation) for violation in check_store(root, config_on(root))]
    broker = broker_on(root)
    refusal = await start_or_refuse(broker)
    if refusal is not None:
        assert str(root) in refusal, f"{said}: {refusal}"
        assert named, f"{said}: refused, but not named before: {refusal}"
        return
    try:
        assert broker.store is not None
        wrong, missing = look_at(broker.store, templates.messages, done)
        lost_before = [
            record
            for record in missing
            if record.physical_offset + record.size <= done.first_of_log()
        ]
        if (wrong or lost_before or (missing and clean)) and not done.looks_like_retention:
            assert named, f"{said}: {len(missing)} missing, {wrong[:3]}, not named before"
        if done.in_log:
            assert not lost_before, f"{said}: lost {len(lost_before)}, {lost_before[0]}"
    finally:
        await broker.stop()
    if not named:
        left = [str(violation) for violation in check_store(root, config_on(root))]
        assert left == [], said


async def start_or_refuse(broker: Broker) -> str | None:
    """Start it; what a user is told where that is not possible."""
    try:
        await broker.start()
    except (StoreError, PersistenceError) as error:
        await broker.stop()
        return str(error)
    except OSError as error:
        await broker.stop()
        return str(error.filename)
    return None


def look_at(
    store: MessageStore, messages: dict[int, MessageRecord], done: Damage
) -> tuple[list[str], list[MessageRecord]]:
    """Pull every queue and look up every key: what was wrong, and what was not there."""
    wrong: list[str] = []
    seen: set[int] = set()
    for topic, queue_id in QUEUES:
        for offset, piece in _pieces(store, topic, queue_id):
            try:
                (record,) = decode_records(piece)
                number = number_of(record)
                sent = messages[number]
            except (RecordError, ValueError, KeyError) as error:
                wrong.append(f"{topic} {queue_id} {offset}: {error}")
                continue
            place = (record.topic, record.queue_id, record.queue_offset)
            if place != (topic, queue_id, offset) or record.body != body_of(number):
                wrong.append(f"{topic} {queue_id} {offset}: {place}")
            elif not done.touches(sent) and not record.raw_properties.startswith(
                properties_of(number)
            ):
                wrong.append(f"{topic} {queue_id} {offset}: {record.raw_properties!r}")
            else:
                assert number not in seen, "served twice"
                seen.add(number)
    wait_until(lambda: store.dispatch_behind == 0)
    for number in seen:
        sent = messages[number]
        found = store.query(sent.topic, f"key{number}", 64, 0, FOREVER)
        if sent.physical_offset not in found and not done.touches(sent):
            wrong.append(f"key{number} is not found")
    return wrong, [record for number, record in messages.items() if number not in seen]


def _pieces(store: MessageStore, topic: str, queue_id: int) -> list[tuple[int, bytes]]:
    """Each message of a queue as it is served, one by one."""
    pieces: list[tuple[int, bytes]] = []
    offset = store.min_offset(topic, queue_id) or 0
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 1)
        if result.status is GetStatus.FOUND:
            pieces.append((offset, b"".join(result.pieces)))
        assert result.next_offset > offset, result
        offset = result.next_offset
    return pieces


@pytest.mark.parametrize("seed", range(30))
async def test_damage_is_survived_or_named(tmp_path: Path, templates: Templates, seed: int) -> None:
    await start_and_judge(templates, tmp_path / "store", seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1000))
async def test_much_damage_is_survived_or_named(
    tmp_path: Path, templates: Templates, seed: int
) -> None:
    await start_and_judge(templates, tmp_path / "store", seed)
