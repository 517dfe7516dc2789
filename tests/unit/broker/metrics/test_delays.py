from __future__ import annotations

import pytest

from pyromq.broker.metrics.delays import DelayMetrics
from pyromq.protocol.message.units import Entry
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.protocol.wire.codes import ResponseCode
from tests.support.metrics import Scrape, collected
from tests.support.requests import send_request
from tests.unit.broker.metrics.metered import MeteredBroker


async def scrape(broker: MeteredBroker) -> Scrape:
    return await collected(DelayMetrics(broker.parts).collect)


def delay(broker: MeteredBroker) -> Entry:
    """Send a message of level 3; return the first entry of the level."""
    request = send_request(queueId="0", properties="DELAY\x013")
    assert broker.slow.ask(request).code == ResponseCode.SUCCESS
    queue = broker.store.find_queue(SCHEDULE_TOPIC, 2)
    assert queue is not None
    entry = queue.entry(0)
    assert entry is not None
    return entry


async def test_levels_without_messages(broker: MeteredBroker) -> None:
    found = await scrape(broker)
    assert len(found.series("pyromq_delay_pending_messages")) == 18
    assert found.value("pyromq_delay_pending_messages", level="3", delay="10s") == 0
    assert found.value("pyromq_delay_lateness_seconds", level="18", delay="2h") == 0


async def test_pending_and_late(broker: MeteredBroker) -> None:
    entry = delay(broker)
    delay(broker)
    broker.now = entry.tags_code - 1
    found = await scrape(broker)
    assert found.value("pyromq_delay_pending_messages", level="3") == 2
    assert found.value("pyromq_delay_lateness_seconds", level="3") == 0
    broker.now = entry.tags_code + 2500
    assert (await scrape(broker)).value("pyromq_delay_lateness_seconds", level="3") == 2.5
    broker.tables.delay_offsets.move({3: 1}, broker.store.put_end)
    assert (await scrape(broker)).value("pyromq_delay_pending_messages", level="3") == 1


@pytest.mark.parametrize("tags_code", [None, -(1 << 63)], ids=["time", "extension"])
def test_when_a_message_is_due(broker: MeteredBroker, tags_code: int | None) -> None:
    entry = delay(broker)
    stored = broker.store.store_time(entry.physical_offset)
    assert stored is not None
    if tags_code is not None:
        entry = entry._replace(tags_code=tags_code)
    assert DelayMetrics(broker.parts)._due(3, entry) == stored + 10_000
