from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pyromq.admin import Admin, AdminError
from pyromq.admin.errors import RefusedError, UnreachableError
from pyromq.admin.groups.groups import GroupSettings
from pyromq.admin.messages import resending
from pyromq.admin.session import AdminSession
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.testing import Cluster
from tests.unit.admin.stored_messages import make_dead_letters

GROUP = "billing"
BODIES = [b"%d" % number for number in range(4)]
_SENDS = (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2)


@pytest.fixture
async def dead(
    rocketmq: Cluster, admin: Admin, rocketmq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setattr(resending, "_BUSY_PAUSE_SECONDS", 0.01)
    await admin.groups.update(GroupSettings(GROUP), cluster="DefaultCluster")
    await make_dead_letters(admin, rocketmq.namesrv, rocketmq_topic, GROUP, BODIES)
    return rocketmq_topic


class Faults:
    """Sends with errors, before or after the broker stored the message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: AdminError, *, stored: bool) -> None:
        self.left = 2
        original = AdminSession.ask

        async def ask(session: AdminSession, address: str, code: Any, *args: Any, **kw: Any) -> Any:
            if code not in _SENDS or self.left == 0:
                return await original(session, address, code, *args, **kw)
            self.left -= 1
            if stored:
                await original(session, address, code, *args, **kw)
            raise error

        monkeypatch.setattr(AdminSession, "ask", ask)


async def _copies(rocketmq: Cluster, topic: str) -> Counter[bytes]:
    count = await rocketmq.message_count_async(topic)
    messages = await rocketmq.drain_async(topic, count=count)
    return Counter(each.body for each in messages) - Counter(BODIES)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("to_retry_topic", [False, True])
async def test_a_send_whose_outcome_is_unknown(
    rocketmq: Cluster,
    admin: Admin,
    dead: str,
    monkeypatch: pytest.MonkeyPatch,
    stored: bool,
    to_retry_topic: bool,
) -> None:
    if to_retry_topic:
        await rocketmq.create_topic_async("%RETRY%billing", queues=1)
    faults = Faults(monkeypatch, UnreachableError("broker", "cut"), stored=stored)
    # The lock under the old name ends with the connection.
    _cut_after_faults(admin, rocketmq, monkeypatch)

    result = await admin.dead_letters.resend(GROUP, to_retry_topic=to_retry_topic)

    assert faults.left < 2
    assert (result.sent, result.failures) == (4, {})
    if to_retry_topic:
        assert await rocketmq.message_count_async("%RETRY%billing") == 4
    else:
        assert await _copies(rocketmq, dead) == Counter(BODIES)


def _cut_after_faults(admin: Admin, rocketmq: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyromq.admin.messages.fence import Fence

    original = Fence.restart

    async def restart(fence: Fence) -> None:
        connection = await admin.session.client.remoting.connect(rocketmq.brokers[0].address)
        connection._end("cut by the test")
        await original(fence)

    monkeypatch.setattr(Fence, "restart", restart)


async def test_a_busy_broker_is_asked_again(
    rocketmq: Cluster, admin: Admin, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = RefusedError("broker", ResponseCode.SYSTEM_BUSY, "busy")
    faults = Faults(monkeypatch, busy, stored=False)
    result = await admin.dead_letters.resend(GROUP)
    assert (faults.left, result.sent, result.failures) == (0, 4, {})
    assert await _copies(rocketmq, dead) == Counter(BODIES)


async def test_a_broker_that_stays_busy_fails_the_resend(
    rocketmq: Cluster, admin: Admin, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = RefusedError("broker", ResponseCode.SYSTEM_BUSY, "busy")
    faults = Faults(monkeypatch, busy, stored=False)
    faults.left = 1000
    with pytest.raises(RefusedError, match="busy"):
        await admin.dead_letters.resend(GROUP)
    assert await _copies(rocketmq, dead) == Counter()


async def test_refused_messages_are_reported(
    rocketmq: Cluster, admin: Admin, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    illegal = RefusedError("broker", ResponseCode.MESSAGE_ILLEGAL, "too large")
    faults = Faults(monkeypatch, illegal, stored=False)
    faults.left = 1
    result = await admin.dead_letters.resend(GROUP)
    assert (result.sent, len(result.failures)) == (0, 4)
    assert "too large" in next(iter(result.failures.values()))
    assert await _copies(rocketmq, dead) == Counter()
    assert (await admin.dead_letters.resend(GROUP)).sent == 4


async def test_a_topic_that_cannot_be_read_is_refused(
    rocketmq: Cluster, admin: Admin, dead: str
) -> None:
    await admin.topics.set_permission(dead, 2, broker=rocketmq.brokers[0].address)
    with pytest.raises(AdminError, match="readable and writable"):
        await admin.dead_letters.resend(GROUP)


@pytest.mark.rocketmq(brokers=2)
async def test_dead_letters_of_several_brokers(rocketmq: Cluster, admin: Admin, dead: str) -> None:
    result = await admin.dead_letters.resend(GROUP)
    assert (result.selected, result.sent) == (4, 4)
    assert (await admin.dead_letters.resend(GROUP)).already_sent == 4
    # Also to a topic that only one of the brokers has.
    from pyromq.admin.topics import TopicConfiguration

    broker = rocketmq.brokers[1].address
    await admin.topics.update(TopicConfiguration("parking", 2, 2), broker=broker)
    assert (await admin.dead_letters.resend(GROUP, to="parking")).sent == 4
    assert (await admin.dead_letters.resend(GROUP, to="parking")).already_sent == 4
    assert await _copies(rocketmq, dead) == Counter(BODIES)


async def test_the_rate_is_kept(admin: Admin, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dead
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("pyromq.admin.messages.resending.asyncio.sleep", sleep)
    monkeypatch.setattr("pyromq.admin.messages.resending.time.monotonic", lambda: 100.0)
    result = await admin.dead_letters.resend(GROUP, rate=4)
    assert result.sent == 4
    assert slept == [0.25, 0.5, 0.75]
