from __future__ import annotations

import pytest

from pyromq.client.consumer.locks import QueueLocks
from pyromq.client.errors import NoMasterError, TopicNotFoundError
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.unit.client.fake_cluster import running_cluster, running_pair
from tests.unit.client.sessions import session_at

TOPICS = {"tenant%t": {"b0": 2, "b1": 1}}
FIRST, SECOND = (MessageQueue("t", "b0", number) for number in range(2))
ELSEWHERE = MessageQueue("t", "b1", 0)


async def test_one_member_holds_a_queue_until_it_unlocks_it() -> None:
    async with (
        running_cluster(TOPICS, brokers=2) as cluster,
        session_at(cluster.namesrv, namespace="tenant") as one,
        session_at(cluster.namesrv, namespace="tenant") as two,
    ):
        ours, theirs = QueueLocks(one, "g"), QueueLocks(two, "g")
        assert await ours.lock(FIRST)
        assert not await theirs.lock(FIRST)
        assert await theirs.lock(SECOND)
        assert await ours.renew([FIRST, SECOND, ELSEWHERE]) == {
            FIRST: True,
            SECOND: False,
            ELSEWHERE: True,
        }
        assert cluster.brokers[0].locks["tenant%t", 0] == one.client_id
        await theirs.unlock([FIRST, SECOND])
        await ours.unlock([FIRST])
        assert cluster.brokers[0].locks == {}
        assert await theirs.lock(FIRST)


async def test_unreachable_brokers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running_cluster(TOPICS, brokers=2) as cluster,
        session_at(cluster.namesrv, namespace="tenant") as session,
    ):
        locks = QueueLocks(session, "g")
        unknown = MessageQueue("t", "b9", 0)
        with pytest.raises(TopicNotFoundError, match="b9"):
            await locks.lock(unknown)
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            cluster.brokers[0].refusals[code] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        assert await locks.renew([unknown, FIRST, ELSEWHERE]) == {ELSEWHERE: True}
        assert "locks of 1 queues not renewed" in caplog.text
        await locks.unlock([FIRST, ELSEWHERE])
        assert "1 queues not unlocked" in caplog.text


async def test_only_a_master_locks(caplog: pytest.LogCaptureFixture) -> None:
    queues = [MessageQueue("t", "b1", number) for number in range(2)]
    async with (
        running_pair({"t": {"b1": 2}}) as (cluster, master, replica),
        session_at(cluster.namesrv) as session,
    ):
        locks = QueueLocks(session, "g")
        master.is_listed = False
        with pytest.raises(NoMasterError):
            await locks.lock(queues[0])
        assert await locks.renew(queues) == {}
        assert "cannot lock or unlock 2 queues: topic 't': b1 has no master" in caplog.text
        # A master that is back is found long before routes are due for a refresh.
        master.is_listed = True
        assert await locks.renew(queues) == dict.fromkeys(queues, True)
        assert replica.requests == []
