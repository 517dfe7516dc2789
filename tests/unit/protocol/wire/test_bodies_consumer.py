from __future__ import annotations

import orjson

from pyromq.protocol.wire.bodies import MessageQueue, SubscriptionData
from pyromq.protocol.wire.bodies_consumer import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    DirectResult,
    ProcessQueueInfo,
)


def test_running_info_of_a_consumer_as_java_writes_it() -> None:
    info = ConsumerRunningInfo(
        properties={"PROP_CONSUMEORDERLY": "false"},
        subscription_set=[SubscriptionData("t")],
        mq_table={MessageQueue("t", "b", 1): ProcessQueueInfo(7, cached_msg_size_in_mib=2)},
        status_table={"t": ConsumeStatus(pull_rt=1.5, consume_ok_tps=2.0)},
    )
    assert ConsumerRunningInfo.decode(info.encode()) == info
    text = info.encode()
    for piece in (
        b'"mqTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"cachedMsgCount":0,',
        b'"cachedMsgSizeInMiB":2',
        b'"commitOffset":7',
        b'"droped":false',
        b'"pullRT":1.5',
        b'"consumeOKTPS":2.0',
        b'"consumeFailedTPS":0.0',
    ):
        assert piece in text
    assert b"jstack" not in text


def test_result_of_direct_consumption() -> None:
    result = ConsumeMessageDirectlyResult(DirectResult.CR_LATER, order=True, spent_time_mills=3)
    assert orjson.loads(result.encode()) == {
        "autoCommit": True,
        "consumeResult": "CR_LATER",
        "order": True,
        "spentTimeMills": 3,
    }
    assert ConsumeMessageDirectlyResult.decode(result.encode()) == result
