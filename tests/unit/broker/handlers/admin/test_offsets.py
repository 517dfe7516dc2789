from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from pyromq.broker.state.capacity import Capacity
from pyromq.protocol.wire.bodies import TopicConfig
from pyromq.protocol.wire.bodies_admin import (
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from tests.unit.broker.handlers.admin.administered import ADMIN, Administered, asking, queue


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Administered]:
    broker = Administered(tmp_path)
    for queue_id in (0, 1):
        broker.put(b"1", b"2", b"3", b"4", queue_id=queue_id)
        broker.offsets.commit("g", "T", queue_id, 3 - queue_id)
    yield broker
    await broker.close()


async def reset(
    broker: Administered,
    timestamp: int,
    *,
    force: bool = True,
    language: LanguageCode = LanguageCode.JAVA,
    topic: str = "T",
    group: str = "g",
) -> ResetOffsetBody:
    request = asking(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        language,
        topic=topic,
        group=group,
        timestamp=str(timestamp),
        isForce=str(force).lower(),
    )
    answer = await broker.offset_admin.reset_offset(ADMIN, request)
    assert answer.code == ResponseCode.SUCCESS
    return ResetOffsetBody.decode(answer.body)


async def test_members_are_notified_of_their_new_offsets(broker: Administered) -> None:
    one, other = broker.join("one"), broker.join("other", language=LanguageCode.CPP)
    assert (await reset(broker, -1)).offset_table == {queue(0): 4, queue(1): 4}
    (told,) = one.sent
    assert told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert told.is_oneway
    assert (told.ext_fields["topic"], told.ext_fields["group"]) == ("T", "g")
    assert told.ext_fields["timestamp"] == "-1"
    assert ResetOffsetBody.decode(told.body).offset_table == {queue(0): 4, queue(1): 4}
    (told,) = other.sent
    listed = ResetOffsetBodyForC.decode(told.body).offset_table
    assert [(each.topic, each.broker_name, each.queue_id, each.offset) for each in listed] == [
        ("T", "broker-a", 0, 4),
        ("T", "broker-a", 1, 4),
    ]
    assert broker.offsets.query("g", "T", 0) == 3, "the clients commit"


async def test_an_administrator_may_request_the_format_for_cpp(broker: Administered) -> None:
    one = broker.join("one")
    await reset(broker, -1, language=LanguageCode.CPP)
    (told,) = one.sent
    assert len(ResetOffsetBodyForC.decode(told.body).offset_table) == 2


async def test_back_to_a_time_and_forward_only_by_force(broker: Administered) -> None:
    broker.join("one")
    assert (await reset(broker, 0, force=False)).offset_table == {queue(0): 0, queue(1): 0}
    assert (await reset(broker, -1, force=False)).offset_table == {queue(0): 3, queue(1): 2}
    assert (await reset(broker, -1, force=True)).offset_table == {queue(0): 4, queue(1): 4}


async def test_impossible_resets(broker: Administered) -> None:
    with pytest.raises(RequestError, match="Consumer not online") as refused:
        await reset(broker, -1)
    assert refused.value.code == ResponseCode.CONSUMER_NOT_ONLINE
    with pytest.raises(RequestError, match="no topic in this broker"):
        await reset(broker, -1, topic="X")
    with pytest.raises(RequestError, match="THe consumer group <x> not exist"):
        await reset(broker, -1, group="x")
    one = broker.join("one")
    broker.join("old", version=27)
    with pytest.raises(RequestError, match="does not support this feature"):
        await reset(broker, -1)
    assert one.sent == [], "all of them, or none"


async def test_offsets_are_cloned(broker: Administered) -> None:
    broker.topics.update(TopicConfig("U", 1, 1))
    broker.offsets.commit("g", "U", 0, 9)
    broker.offsets.commit("g", "Gone", 0, 9)

    async def clone(**fields: str) -> None:
        answer = await broker.offset_admin.clone_offsets(
            ADMIN, asking(**{"srcGroup": "g", "destGroup": "h", **fields})
        )
        assert answer.code == ResponseCode.SUCCESS

    await clone(topic="T")
    assert broker.offsets.queues("h", "T") == {0: 3, 1: 2}
    assert broker.offsets.topics_of("h") == {"T"}
    await clone(destGroup="i", topic=" ")
    assert broker.offsets.topics_of("i") == {"T", "U"}
    broker.join("one", "T")
    await clone(destGroup="j")
    assert broker.offsets.topics_of("j") == {"T"}, "the group does not subscribe to the other"
    await clone(destGroup="k", offline="true")
    assert broker.offsets.topics_of("k") == {"T", "U"}


@pytest.mark.parametrize("group", ["", "a@b", "x" * 256])
async def test_offsets_are_not_cloned_to_an_illegal_group(broker: Administered, group: str) -> None:
    before = broker.offsets.snapshot().encode()
    with pytest.raises(RequestError):
        await broker.offset_admin.clone_offsets(
            ADMIN, asking(srcGroup="g", destGroup=group, topic="T", offline="true")
        )
    assert broker.offsets.snapshot().encode() == before


async def test_correction_offsets(broker: Administered) -> None:
    broker.offsets.commit("h", "T", 0, 1)
    broker.offsets.commit("h", "T", 1, 4)

    async def ask(**fields: str) -> dict[int, int]:
        answer = await broker.offset_admin.correction_offsets(
            ADMIN, asking(**{"topic": "T", "compareGroup": "g", **fields})
        )
        return QueryCorrectionOffsetBody.decode(answer.body).correction_offsets

    assert await ask() == {0: 1, 1: 2}
    assert await ask(filterGroups="g,x", compareGroup="g") == {0: 1, 1: (1 << 63) - 1}
    assert broker.offsets.query("g", "T", 0) == 3, "what is left out is not deleted"
    assert await ask(filterGroups="g,h", compareGroup="h") == {}


async def test_offsets_are_not_cloned_into_a_full_table(
    broker: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Capacity("pairs of topic and group", "maxConsumerOffsets", lambda: 1)
    monkeypatch.setattr(broker.offsets, "_capacity", full)
    with pytest.raises(RequestError, match=r"pairs of topic and group, limit 1 \(maxConsumerOff"):
        await broker.offset_admin.clone_offsets(
            ADMIN, asking(srcGroup="g", destGroup="h", topic="T")
        )
    assert broker.offsets.topics_of("h") == set()


async def turns_during(work: Awaitable[RemotingCommand]) -> int:
    """Return how many loop iterations pass before the response."""
    answering = asyncio.ensure_future(work)
    turns = 0
    while not answering.done():
        turns += 1
        await asyncio.sleep(0)
    assert answering.result().code == ResponseCode.SUCCESS
    return turns


async def test_many_queues_and_groups_yield_to_the_loop(broker: Administered) -> None:
    broker.topics.update(TopicConfig("Wide", 3000, 3000))
    for queue_id in range(3000):
        broker.offsets.commit("g", "Wide", queue_id, 0)
    for number in range(3000):
        broker.offsets.commit(f"h{number}", "T", 0, 1)
    broker.join("one", "Wide")
    reset = asking(topic="Wide", group="g", timestamp="-1", isForce="true")
    assert await turns_during(broker.offset_admin.reset_offset(ADMIN, reset)) > 20
    corrections = asking(topic="T", compareGroup="g")
    assert await turns_during(broker.offset_admin.correction_offsets(ADMIN, corrections)) > 10
