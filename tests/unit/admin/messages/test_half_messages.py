from __future__ import annotations

import pytest

from pyromq.admin import Admin, AdminError, NotFoundError
from pyromq.client import Message, TransactionProducer, TransactionState
from pyromq.testing import Cluster
from tests.support.patience import until

SETTINGS = {
    "transactionTimeOut": "100",
    "transactionCheckInterval": "100",
    "transactionCheckMax": "2",
}


async def test_open_transactions(rocketmq: Cluster, admin: Admin, rocketmq_topic: str) -> None:
    assert (await admin.half_messages.find()).messages == ()
    async with TransactionProducer(
        rocketmq.namesrv, group="makers", check=lambda _: TransactionState.UNKNOWN
    ) as producer:
        for body, state in (
            (b"open", TransactionState.UNKNOWN),
            (b"committed", TransactionState.COMMIT),
            (b"rolled back", TransactionState.ROLLBACK),
        ):
            await producer.send_in_transaction(
                Message(rocketmq_topic, body),
                lambda _, state=state: state,  # type: ignore[misc]
            )

        async def bodies() -> list[bytes]:
            return [each.message.body for each in (await admin.half_messages.find()).messages]

        async def is_one_open() -> bool:
            return await bodies() == [b"open"]

        await until(is_one_open)
        (half,) = (await admin.half_messages.find()).messages
        assert (half.topic, half.producer_group) == (rocketmq_topic, "makers")
        assert half.age_ms >= 0
        for wanted in ({"topic": "other"}, {"producer_group": "other"}):
            assert (await admin.half_messages.find(**wanted)).messages == ()  # type: ignore[arg-type]
        assert len((await admin.half_messages.find(topic=rocketmq_topic)).messages) == 1


@pytest.mark.rocketmq(settings=SETTINGS)
async def test_abandoned_transactions_are_resumed(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str
) -> None:
    answers = [TransactionState.UNKNOWN]
    async with TransactionProducer(
        rocketmq.namesrv, group="makers", check=lambda _: answers[0]
    ) as producer:
        await producer.send_in_transaction(
            Message(rocketmq_topic, b"forgotten"), lambda _: TransactionState.UNKNOWN
        )

        async def is_abandoned() -> bool:
            return bool((await admin.half_messages.abandoned()).messages)

        await until(is_abandoned)
        (message,) = (await admin.half_messages.abandoned()).messages
        assert message.body == b"forgotten"
        answers[0] = TransactionState.COMMIT
        await admin.half_messages.resume(message.offset_msg_id)
        (delivered,) = await rocketmq.drain_async(rocketmq_topic, count=1)
        assert delivered.body == b"forgotten"


async def test_resuming_nothing(rocketmq: Cluster, admin: Admin) -> None:
    with pytest.raises(NotFoundError, match="not a message id"):
        await admin.half_messages.resume("what")
    assert (await admin.half_messages.abandoned()).messages == ()
    host, port = rocketmq.brokers[0].address.split(":")
    from pyromq.protocol.message.message_id import encode_host, encode_message_id

    with pytest.raises(AdminError):
        await admin.half_messages.resume(encode_message_id(encode_host(host, int(port)), 999))
