from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.handlers import plain_pulls, pull_serving
from pyromq.broker.handlers.admin.stats import StatsAdminHandlers
from pyromq.broker.services.stats import PutTimes
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.bodies_admin import BrokerStatsData, BrokerStatsItem
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from tests.support.requests import pull_request
from tests.unit.broker.assembled import AssembledBroker

#: Every key of RocketMQ 4.9.7's response, except those with a directory or a delay level.
KEYS = {
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "bootTimestamp",
    "brokerVersion",
    "brokerVersionDesc",
    "commitLogDirCapacity",
    "commitLogDiskRatio",
    "commitLogMaxOffset",
    "commitLogMinOffset",
    "consumeQueueDiskRatio",
    "dispatchBehindBytes",
    "dispatchMaxBuffer",
    "earliestMessageTimeStamp",
    "getFoundTps",
    "getMessageEntireTimeMax",
    "getMissTps",
    "getTotalTps",
    "getTransferedTps",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgPutTotalYesterdayMorning",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putLatency99",
    "putLatency999",
    "putMessageAverageSize",
    "putMessageDistributeTime",
    "putMessageEntireTimeMax",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageTimesTotal",
    "putTps",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "remainHowManyDataToFlush",
    "remainTransientStoreBufferNumbs",
    "runtime",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
}


class Setup:
    def __init__(self, root: Path) -> None:
        self.assembled = AssembledBroker(root)
        self.now = 1_000_000
        self.delays = self.assembled.tables.delay_offsets
        self.handlers = StatsAdminHandlers(
            dataclasses.replace(self.assembled.parts, clock=lambda: self.now)
        )
        self.connection: Any = None

    async def view(self, name: str, key: str) -> RemotingCommand:
        request = RemotingCommand(
            RequestCode.VIEW_BROKER_STATS_DATA, ext_fields={"statsName": name, "statsKey": key}
        )
        return await self.handlers.view_stats(self.connection, request)

    async def info(self) -> dict[str, str]:
        request = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await self.handlers.runtime_info(self.connection, request)
        assert answer.code == ResponseCode.SUCCESS
        return KVTable.decode(answer.body).table


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    await setup.assembled.close()


async def test_a_statistic(setup: Setup) -> None:
    setup.assembled.put(b"one")
    answer = await setup.view("TOPIC_PUT_NUMS", "T")

    assert answer.code == ResponseCode.SUCCESS
    assert BrokerStatsData.decode(answer.body) == BrokerStatsData()


async def test_a_statistic_that_was_never_counted(setup: Setup) -> None:
    for name, key in (("TOPIC_PUT_NUMS", "nothing"), ("NO_STATISTIC", "T")):
        with pytest.raises(RequestError, match=f"The stats <{name}> <{key}> not exist") as caught:
            await setup.view(name, key)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR


async def test_the_runtime_information_has_every_key_of_java(setup: Setup) -> None:
    info = await setup.info()

    directory = setup.assembled.store.config.commit_log_directory
    own = {"halfMessagesWithoutProducer"}
    assert info.keys() == KEYS | own | {f"commitLogDiskRatio_{directory}"}
    assert info["earliestMessageTimeStamp"] == "-1"
    assert info["brokerVersionDesc"] == "V4_9_7"


async def test_the_runtime_information_of_a_busy_broker(setup: Setup) -> None:
    setup.assembled.put(b"one", b"two")
    setup.assembled.stats.pulled("g", "T", 0, 2, 200)
    setup.now += ((26 * 60 + 3) * 60 + 4) * 1000
    info = await setup.info()
    (first, second) = setup.assembled.records()

    assert info["msgPutTotalTodayNow"] == info["putMessageTimesTotal"] == "2"
    assert info["putMessageSizeTotal"] == str(first.size + second.size)
    assert info["putMessageAverageSize"] == str((first.size + second.size) / 2)
    assert info["msgGetTotalTodayNow"] == "2"
    assert info["earliestMessageTimeStamp"] == str(first.store_timestamp)
    assert info["commitLogMaxOffset"] == str(first.size + second.size)
    assert info["runtime"] == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert 0 <= float(info["commitLogDiskRatio"]) <= 1
    # As mqadmin parses them.
    for key in ("putTps", "getTransferedTps"):
        assert len([float(rate) for rate in info[key].split(" ")]) == 3


async def test_moments(setup: Setup) -> None:
    setup.assembled.put(b"one", b"two")
    answer = setup.assembled.fast.ask(pull_request(maxMsgNums="1"))
    assert answer.code == ResponseCode.SUCCESS
    size = sum(record.size for record in setup.assembled.records())
    data = BrokerStatsData.decode((await setup.view("GROUP_GET_FALL_SIZE", "0@T@consumers")).body)
    assert data.stats_minute == data.stats_day == BrokerStatsItem(size, 0.0, float(size))
    with pytest.raises(RequestError, match="The stats <GROUP_GET_FALL_TIME> <0@T@o> not exist"):
        await setup.view("GROUP_GET_FALL_TIME", "0@T@o")


async def test_the_slowest_put_and_get_and_the_largest_backlog(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = await setup.info()
    assert info["pageCacheLockTimeMills"] == info["getMessageEntireTimeMax"] == "0"
    store = setup.assembled.store
    monkeypatch.setattr(type(store), "dispatch_behind", property(lambda _: 777))
    store.growth.slow_seal(12_000_000)
    setup.assembled.stats.slowest_get = 34
    info = await setup.info()
    assert info["pageCacheLockTimeMills"] == "12"
    assert info["getMessageEntireTimeMax"] == "34"
    assert info["dispatchMaxBuffer"] == "777"


@pytest.mark.parametrize("way", ["fast", "hot"])
async def test_a_slow_get_is_remembered(
    setup: Setup, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.assembled.put(b"one")
    client = getattr(setup.assembled, way)
    client.ask(pull_request())  # makes the plan
    clock = itertools.count(0, 0.25)
    for module in (plain_pulls, pull_serving):
        monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
    assert client.ask(pull_request()).code == ResponseCode.SUCCESS
    assert setup.assembled.stats.slowest_get == 250


async def test_bytes_that_wait_in_the_transient_store_pool(tmp_path: Path) -> None:
    broker = AssembledBroker(
        tmp_path,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
        commit_interval_commit_log=10_000_000,
    )
    handlers = StatsAdminHandlers(broker.parts)
    broker.put(b"one")
    request = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
    answer = await handlers.runtime_info(None, request)  # type: ignore[arg-type]
    info = KVTable.decode(answer.body).table
    assert info["remainHowManyDataToCommit"] == f"{broker.records()[0].size} B"
    await broker.close()


async def test_how_long_puts_took(setup: Setup) -> None:
    setup.assembled.stats.put_times = PutTimes(7, (1, 9, 10, 99, 1500, 20_000))
    info = await setup.info()

    assert info["putMessageDistributeTime"] == (
        "[<=0ms]:7 [0~10ms]:2 [10~50ms]:1 [50~100ms]:1 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 "
        "[1~2s]:1 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:1 "
    )
    assert info["putLatency99"] == "1500.00"


async def test_delay_levels_have_both_offsets(setup: Setup) -> None:
    setup.delays.begin(0)
    setup.delays.move({3: 5}, 0)
    setup.assembled.put(b"x", topic="T")

    assert (await setup.info())["scheduleMessageOffset_3"] == "5,0"
    setup.delays.save_if_changed()
    await setup.delays.close()
