"""The files of Java's store, read beside its broker: what the broker gives, byte for byte.

Then the broker is stopped, and consume queues and key index are made again from its log, in
parts, as Spark's tasks do it: they are those that Java made.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.client import Message, Producer
from pyromq.protocol.message.bulk import read_columns
from pyromq.spark.origins.broker import BrokerOrigin, ConnectionSettings
from pyromq.spark.origins.origin import Origin, Queue, QueueRange, RecordBlock
from pyromq.spark.origins.store import StoreOrigin
from pyromq.store.config import MessageStoreConfig
from tests.interop.store_survey import SETTINGS
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.patience import wait_until
from tests.unit.store.offline.test_log_parts import rebuild_in_parts
from tests.unit.store.offline.test_rebuild import derived

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TOPIC = "StoreOrigin"
COUNT = 400


def messages(origin: Origin) -> dict[Queue, list[bytes]]:
    """All records of the topic, as bytes."""
    found: dict[Queue, list[bytes]] = {}
    for queue, (first, end) in origin.bounds(origin.queues(TOPIC)).items():
        records = found[queue] = []
        for block in origin.blocks(QueueRange(queue, first, end)):
            assert isinstance(block, RecordBlock), block
            data = bytes(block.buffer)
            sizes = read_columns(data, block.starts).column("total_size").tolist()
            starts = block.starts.tolist()
            records += [data[at : at + size] for at, size in zip(starts, sizes, strict=True)]
    return {queue: records for queue, records in found.items() if records}


async def send(namesrv: str, count: int) -> None:
    async with Producer(namesrv, group="store-origin") as producer:
        for number in range(count):
            body = b"%d-" % number * (number % 60 + 1)
            await producer.send(Message(TOPIC, body, tags=f"t{number % 3}", keys=f"k{number} x"))


async def test_java_s_files_beside_its_broker(tmp_path: Path) -> None:
    java_or_skip()
    root = tmp_path / "store"
    with ApacheRocketMQ(
        store=root, broker_properties=SETTINGS, jvm_options=QUICK_JVM_OPTIONS
    ) as java:
        await send(java.namesrv_address, COUNT)
        files = StoreOrigin(root, java.broker_name)
        brokers = BrokerOrigin(ConnectionSettings((java.namesrv_address,)))
        # Java dispatches behind its answers.
        wait_until(lambda: sum(map(len, messages(files).values())) == COUNT)
        assert messages(files) == messages(brokers)
        queues = files.queues(TOPIC)
        assert files.bounds(queues) == brokers.bounds(queues)
        assert TOPIC in files.topics()
        first = next(iter(messages(files).values()))[0]
        stored = int.from_bytes(first[56:64], "big")
        for time in (0, stored, stored + 5, stored + 10_000_000):
            asked = dict.fromkeys(queues, time)
            assert files.offsets_at(asked) == brokers.offsets_at(asked)
        files.close()
        brokers.close()
        java.stop()
        before = derived(root)
        settings = {**SETTINGS, "storePathRootDir": str(root)}
        rebuild_in_parts(MessageStoreConfig.load(settings)[0], 20_000)
        assert derived(root) == before
