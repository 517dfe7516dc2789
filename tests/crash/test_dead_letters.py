"""Dead letters are resent once each, although the process that resends them is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from pyromq.admin import Admin
from pyromq.client import Message, Producer, SendResult
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.properties import RESENT_FROM
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import ConsumerSendMsgBackRequestHeader
from tests.interop.servers import PyromqServer
from tests.support.patience import DEADLINE

pytestmark = pytest.mark.timeout(300)

TOPIC, GROUP = "orders", "billing"
COUNT = 10_000
QUEUES = 4
#: Copies in the topic at which the process is killed.
KILLS = (1_500, 4_000, 7_500)
_SEND_AT_ONCE = 500


@pytest.fixture
def server() -> Iterator[PyromqServer]:
    with PyromqServer() as server:
        yield server


def test_each_is_resent_once_with_three_kills(server: PyromqServer) -> None:
    namesrv = server.namesrv_address
    asyncio.run(_make_dead_letters(server))

    for kill_at in KILLS:
        resend = _resend(namesrv, "--rate", "4000")
        try:
            copies = asyncio.run(_wait_for_copies(namesrv, kill_at, resend))
        finally:
            resend.kill()
            resend.communicate()
        assert resend.returncode == -signal.SIGKILL
        assert copies < COUNT
    last = _resend(namesrv)
    out, _ = last.communicate(timeout=DEADLINE)

    assert last.returncode == 0
    result = json.loads(out)
    assert (result["selected"], result["failures"]) == (COUNT, {})
    assert result["sent"] + result["already_sent"] == COUNT
    assert 0 < result["sent"] < COUNT - KILLS[0]
    originals, resent = asyncio.run(_bodies(namesrv))
    assert originals == Counter(range(COUNT))
    assert resent == Counter(range(COUNT))


def _resend(namesrv: str, *options: str) -> subprocess.Popen[bytes]:
    words = ["dlqResend", "-n", namesrv, "-g", GROUP, "--json", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "pyromq", "admin", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


async def _make_dead_letters(server: PyromqServer) -> None:
    """Send messages and give them back as hopeless, as consumers do."""
    async with (
        Admin(server.namesrv_address, timeout=DEADLINE) as admin,
        Producer(server.namesrv_address) as producer,
    ):
        await _create_topic(admin, server.broker_address)
        for begin in range(0, COUNT, _SEND_AT_ONCE):
            numbers = range(begin, begin + _SEND_AT_ONCE)
            sent = await producer.send_batch([Message(TOPIC, b"%d" % each) for each in numbers])

            async def give_back(result: SendResult) -> None:
                _, _, offset = decode_message_id(result.offset_msg_id)
                header = ConsumerSendMsgBackRequestHeader(offset, GROUP, delay_level=-1)
                await admin.session.ask(
                    server.broker_address, RequestCode.CONSUMER_SEND_MSG_BACK, header
                )

            await asyncio.gather(*map(give_back, sent))
        assert (await admin.dead_letters.counts(GROUP)).count == COUNT


async def _create_topic(admin: Admin, broker: str) -> None:
    from pyromq.admin.groups.groups import GroupSettings
    from pyromq.admin.topics import TopicConfiguration

    topic = TopicConfiguration(TOPIC, QUEUES, QUEUES)
    await admin.topics.update(topic, broker=broker)
    await admin.groups.update(GroupSettings(GROUP), broker=broker)


async def _wait_for_copies(namesrv: str, count: int, resend: subprocess.Popen[bytes]) -> int:
    """Wait until this many copies are in the topic; return how many there are."""
    async with Admin(namesrv, timeout=DEADLINE) as admin:
        while True:
            status = await admin.topics.status(TOPIC)
            copies = sum(each.max_offset for each in status) - COUNT
            if copies >= count:
                return copies
            assert resend.poll() is None, "it ended by itself"
            await asyncio.sleep(0.01)


async def _bodies(namesrv: str) -> tuple[Counter[int], Counter[int]]:
    """Return the numbers in the bodies of the messages that were sent, and of the copies."""
    originals: Counter[int] = Counter()
    copies: Counter[int] = Counter()
    async with Admin(namesrv, timeout=DEADLINE) as admin:
        for queue, _ in await admin.messages.queues(TOPIC):
            begin, end = await admin.messages.bounds(queue)
            async for message in admin.messages.read(queue, begin, end):
                found = copies if RESENT_FROM in message.properties else originals
                found[int(message.body)] += 1
    return originals, copies
