"""SQL92 filters over real sockets: heartbeat, pull, a restart in between, a changed expression;
and messages whose content is meant to break them, or other readers of properties.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.queues import reading
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request
from tests.support.stalls import watched_loop

GROUP = "consumers"


async def start(root: Path) -> Broker:
    config = local_broker(
        enable_property_filter=True,
        enable_calc_filter_bit_map=True,
    )
    broker = Broker(config, small_store(root, enable_consume_queue_ext=True))
    await broker.start()
    return broker


async def heartbeat(client: RemotingClient, broker: Broker, text: str, version: int) -> None:
    subscription = SubscriptionData(
        "T", text, sub_version=version, expression_type="SQL92", code_set=set()
    )
    data = HeartbeatData("c1", [], [ConsumerData(GROUP, subscription_data_set=[subscription])])
    request = RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())
    assert (await client.request(broker.address, request)).code == ResponseCode.SUCCESS


@pytest.fixture(autouse=True)
def _patient_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull ends early if filtering takes long, which any stall of the machine does."""
    monkeypatch.setattr(reading, "_RECORD_FILTER_SECONDS", 60.0)


async def send(client: RemotingClient, broker: Broker, *prices: int) -> None:
    for price in prices:
        request = send_request(
            body=b"%d" % price, queueId="0", properties=f"price\x01{price}\x02TAGS\x01x"
        )
        assert (await client.request(broker.address, request)).code == ResponseCode.SUCCESS


async def pull(
    client: RemotingClient, broker: Broker, version: int, offset: int = 0
) -> RemotingCommand:
    request = pull_request(
        sysFlag=str(PULL_SUSPEND),
        subscription=None,
        subVersion=str(version),
        queueOffset=str(offset),
        suspendTimeoutMillis="10000",
    )
    return await client.request(broker.address, request, DEADLINE)


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer
    return [record.body for record in decode_records(answer.body)]


async def test_filters_outlive_a_restart(tmp_path: Path) -> None:
    client = RemotingClient()
    broker = await start(tmp_path)
    await heartbeat(client, broker, "price > 10", 1)
    await send(client, broker, 5, 15, 25)
    assert bodies(await pull(client, broker, 1)) == [b"15", b"25"]
    await broker.stop()
    assert (tmp_path / "config" / "consumerFilter.json").exists()

    broker = await start(tmp_path)
    loaded = broker.filters.find("T", GROUP)
    assert loaded is not None
    assert (loaded.text, loaded.is_dead) == ("price > 10", True)
    await send(client, broker, 35, 8)
    await heartbeat(client, broker, "price > 10", 1)
    assert not loaded.is_dead
    assert bodies(await pull(client, broker, 1)) == [b"15", b"25", b"35"]

    await heartbeat(client, broker, "price < 10", 2)
    assert bodies(await pull(client, broker, 2)) == [b"5", b"8"]
    await client.close()
    await broker.stop()


async def test_a_waiting_pull_is_answered_by_what_it_wants(tmp_path: Path) -> None:
    client, other = RemotingClient(), RemotingClient()
    broker = await start(tmp_path)
    await heartbeat(client, broker, "price > 10", 1)
    await send(other, broker, 5)
    waiting = asyncio.create_task(pull(client, broker, 1, offset=1))
    await until(lambda: len(broker.long_poll))
    await send(other, broker, 6, 7)
    assert not waiting.done()
    await send(other, broker, 11)
    assert bodies(await waiting) == [b"11"]
    await client.close()
    await other.close()
    await broker.stop()


@pytest.mark.parametrize("poison", ["9" * 5000, "1" * 20_000 + "x", "0" * 30_000])
async def test_a_message_cannot_keep_a_group_from_what_is_behind_it(
    tmp_path: Path, poison: str
) -> None:
    client = RemotingClient()
    broker = await start(tmp_path)
    await heartbeat(client, broker, "price > 10 OR price > 10.5", 1)
    request = send_request(queueId="0", properties=f"price\x01{poison}")
    assert (await client.request(broker.address, request)).code == ResponseCode.SUCCESS
    await send(client, broker, 15)
    assert bodies(await pull(client, broker, 1)) == [b"15"]
    await client.close()
    await broker.stop()


async def test_many_waiting_pulls_with_long_expressions_stall_nobody(tmp_path: Path) -> None:
    client = RemotingClient()
    broker = await start(tmp_path)
    await send(client, broker, 1)
    pulls = [
        pull_request(
            opaque=number,
            sysFlag=str(PULL_SUSPEND | PULL_SUBSCRIPTION),
            subscription=f"{number} = -1 OR " + " OR ".join(["price > .5"] * 1100),
            expressionType="SQL92",
            queueOffset="1",
            suspendTimeoutMillis="60000",
        )
        for number in range(60)
    ]
    async with watched_loop() as stalls:
        waiting = [
            asyncio.create_task(client.request(broker.address, request, DEADLINE))
            for request in pulls
        ]
        await until(lambda: len(broker.long_poll) == 60)
        poison = send_request(queueId="0", properties="price\x010." + "0" * 30_000)
        assert (await client.request(broker.address, poison)).code == ResponseCode.SUCCESS
        await send(client, broker, 7)
        answers = await asyncio.gather(*waiting)
    for answer in answers:
        if answer.code == ResponseCode.SUCCESS:
            assert bodies(answer) == [b"7"]
        else:  # its slice ended before
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.ext_fields["nextBeginOffset"] == "2"
    # Nine seconds where each evaluation reads the number 1,100 times, and all in one turn.
    assert stalls.longest < 1.5
    await client.close()
    await broker.stop()


#: Properties that a broker or a client reads as numbers.
NUMBERS = (
    "DELAY",
    "TRANSACTION_CHECK_TIMES",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "REAL_QID",
    "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES",
    "TTL",
    "PUSH_REPLY_TIME",
    "ARRIVE_TIME",
    "1ST_RETRY_DELAY",
)


@pytest.mark.parametrize("number", ["9" * 5000, "0" * 5000 + "1", "x"])
async def test_no_number_in_a_message_hurts_the_broker(
    tmp_path: Path, number: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sent, half, sent back, replied: refused or stored, and every service goes on."""
    config = local_broker(transaction_check_interval=20, transaction_time_out=1)
    broker = Broker(config, small_store(tmp_path))
    await broker.start()
    client = RemotingClient()
    born = str(time.time_ns() // 1_000_000)
    for name in NUMBERS:
        for more in ("", "\x02TRAN_MSG\x01true", f"\x02TRAN_MSG\x01true\x02REAL_TOPIC\x01{name}"):
            request = send_request(
                queueId="0", bornTimestamp=born, properties=f"{name}\x01{number}{more}"
            )
            answer = await client.request(broker.address, request)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
            assert len(answer.remark or "") < 300
            if answer.code == ResponseCode.SUCCESS:
                place = decode_message_id(answer.ext_fields["msgId"])[2]
                back = {"offset": str(place), "group": GROUP, "delayLevel": "0"}
                request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=back)
                answer = await client.request(broker.address, request)
                assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        reply = send_request(
            RequestCode.SEND_REPLY_MESSAGE_V2, queueId="0", properties=f"{name}\x01{number}"
        )
        assert (await client.request(broker.address, reply)).code == ResponseCode.SYSTEM_ERROR
    halves = broker.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0)  # type: ignore[union-attr]
    assert halves > 0
    await until(
        lambda: broker.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) > halves  # type: ignore[union-attr]
    )
    assert bodies(await client.request(broker.address, pull_request()))
    await client.close()
    await broker.stop()
    assert not [record for record in caplog.records if record.exc_info]
