"""VIEW_BROKER_STATS_DATA and GET_BROKER_RUNTIME_INFO: statistics of the broker.

`mqadmin statsAll`, `brokerStatus`, `clusterList` and the dashboard use them. The runtime info is a
flat table of strings with all of RocketMQ's keys:

- Rates are three numbers, over the last 10, 60 and 600 seconds. RocketMQ omits those it has not run
  long enough for, which its own tools cannot parse; here they cover the time since the start.
- A "thread pool queue" is the lane of that name (`services.flow_control`). Plain sends and pulls
  never wait in one.
- `halfMessagesWithoutProducer` is not RocketMQ's: open transactions without a producer to check
  with, as of the last round (`services.transaction_check`).
- `pageCacheLockTimeMills` is the slowest append of the last one to two minutes: in RocketMQ it is
  the time for which the put lock is held now, but here no request runs during an append.
- `dispatchMaxBuffer` is the most bytes that the key index was behind the log; RocketMQ's is 0.
- GROUP_GET_FALL_SIZE and GROUP_GET_FALL_TIME are moments: each span has the same value.

Tables are read on the loop, disks on the admin lane.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyromq.acl import classification as access
from pyromq.broker.handlers.admin.replication import runtime_figures
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.stats import PutTimes
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.bodies_admin import BrokerStatsData, BrokerStatsItem
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import ViewBrokerStatsDataRequestHeader
from pyromq.store.retention import used_percent

#: The protocol version, as RocketMQ's tools name it.
VERSION_NAME: Final = "V4_9_7"
#: RocketMQ's number of free buffers without a transient store pool.
_NO_POOL: Final = 0x7FFFFFFF
_PUT_TIMES: Final = (
    (1, "[<=0ms]"),
    (10, "[0~10ms]"),
    (50, "[10~50ms]"),
    (100, "[50~100ms]"),
    (200, "[100~200ms]"),
    (500, "[200~500ms]"),
    (1000, "[500ms~1s]"),
    (2000, "[1~2s]"),
    (3000, "[2~3s]"),
    (4000, "[3~4s]"),
    (5000, "[4~5s]"),
    (10_000, "[5~10s]"),
    (None, "[10s~]"),
)
_LIMITS: Final = [limit for limit, _ in _PUT_TIMES if limit is not None]


class StatsAdminHandlers:
    """Reports statistics."""

    def __init__(
        self, parts: BrokerParts, *, halves_without_producer: Callable[[], int] = lambda: 0
    ) -> None:
        self._config = parts.config
        self._store = parts.store
        self._stats = parts.stats
        self._fall_behind = parts.fall_behind
        self._water_marks = parts.water_marks
        self._lanes = parts.lanes
        self._delay_offsets = parts.tables.delay_offsets
        self._halves_without_producer = halves_without_producer
        self._replication = parts.replication_figures
        self._now = parts.clock
        self._started = self._now()

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.VIEW_BROKER_STATS_DATA, access.ADMIN, self.view_stats, is_query=True),
            Route(
                RequestCode.GET_BROKER_RUNTIME_INFO, access.PEER, self.runtime_info, is_query=True
            ),
        )

    async def view_stats(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """VIEW_BROKER_STATS_DATA: return one statistic over the last minute, hour and day."""
        header = ViewBrokerStatsDataRequestHeader.decode(request.ext_fields)
        await self._stats.count()
        data = self._stats.view(header.stats_name, header.stats_key)
        fall = self._fall_behind.view(header.stats_name, header.stats_key)
        if fall is not None:
            value = await self._lanes.admin.run(fall)
            data = None if value is None else _moment(value)
        if data is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        return request.answer(body=data.encode())

    async def runtime_info(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_BROKER_RUNTIME_INFO: return the state of the broker as a table of strings."""
        await self._stats.count()
        table = {
            **self._version_and_time(),
            **self._store_stats(),
            **self._day_totals(),
            **self._queues(),
            **self._store_state(),
            **runtime_figures(self._replication()),
        }
        table |= await self._lanes.admin.run(self._disks)
        return request.answer(body=KVTable(table).encode())

    def _version_and_time(self) -> dict[str, str]:
        seconds = max(0, self._now() - self._started) // 1000
        days, seconds = divmod(seconds, 24 * 3600)
        hours, seconds = divmod(seconds, 3600)
        minutes, seconds = divmod(seconds, 60)
        return {
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": str(PROTOCOL_VERSION),
            "bootTimestamp": str(self._started),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "startAcceptSendRequestTimeStamp": str(
                self._config.start_accept_send_request_time_stamp
            ),
        }

    def _store_stats(self) -> dict[str, str]:
        stats = self._stats
        totals, times = stats.totals, stats.put_times
        found = stats.rates(lambda each: each.found)
        missed = stats.rates(lambda each: each.missed)
        return {
            "putMessageEntireTimeMax": str(stats.slowest_put),
            "putMessageTimesTotal": str(totals.puts),
            "putMessageFailedTimes": str(stats.refused_puts),
            "putMessageSizeTotal": str(totals.put_bytes),
            "putMessageDistributeTime": _distribution(times),
            "putMessageAverageSize": str(totals.put_bytes / max(1, totals.puts)),
            "putLatency99": f"{times.percentile(0.99):.2f}",
            "putLatency999": f"{times.percentile(0.999):.2f}",
            "dispatchMaxBuffer": str(self._water_marks.max_dispatch_behind),
            "getMessageEntireTimeMax": str(stats.slowest_get),
            "putTps": _three(stats.rates(lambda each: each.puts)),
            "getFoundTps": _three(found),
            "getMissTps": _three(missed),
            "getTotalTps": _three(tuple(map(sum, zip(found, missed, strict=True)))),
            "getTransferedTps": _three(stats.rates(lambda each: each.transferred)),
        }

    def _day_totals(self) -> dict[str, str]:
        table = {}
        for when, totals in (
            ("YesterdayMorning", self._stats.yesterday_morning),
            ("TodayMorning", self._stats.this_morning),
            ("TodayNow", self._stats.totals),
        ):
            table[f"msgPutTotal{when}"] = str(totals.puts)
            table[f"msgGetTotal{when}"] = str(totals.transferred)
        return table

    def _queues(self) -> dict[str, str]:
        lanes = self._lanes
        table = {}
        for name, lane in (("send", lanes.send), ("pull", lanes.pull), ("query", lanes.query)):
            table[f"{name}ThreadPoolQueueSize"] = str(lane.size)
            table[f"{name}ThreadPoolQueueCapacity"] = str(lane.capacity)
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = str(lane.head_wait_ms)
        table["EndTransactionQueueSize"] = str(lanes.end_transaction.size)
        table["EndTransactionThreadPoolQueueCapacity"] = str(lanes.end_transaction.capacity)
        return table

    def _store_state(self) -> dict[str, str]:
        store = self._store
        table = {
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "dispatchBehindBytes": str(store.dispatch_behind),
            "pageCacheLockTimeMills": str(self._stats.recent_slowest_put),
            "remainTransientStoreBufferNumbs": str(
                _NO_POOL if store.free_buffers is None else store.free_buffers
            ),
            "remainHowManyDataToFlush": _readable(
                max(0, store.max_physical_offset - store.flushed_offset)
            ),
            "halfMessagesWithoutProducer": str(self._halves_without_producer()),
        }
        if store.free_buffers is not None:
            table["remainHowManyDataToCommit"] = _readable(store.uncommitted)
        if store.agreement is not None:
            table["raftPutEnd"] = str(store.put_end)
        for level, offset in self._delay_offsets.table().offset_table.items():
            end = store.max_offset(SCHEDULE_TOPIC, level - 1)
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        return table

    def _disks(self) -> dict[str, str]:
        """Return the entries that need the disks. Runs on the lane."""
        config, store = self._store.config, self._store
        logs = {
            path: used_percent(path) / 100
            for path in (config.commit_log_directory, *config.more_commit_log_directories)
        }
        earliest = store.store_time(store.min_physical_offset)
        return {
            "earliestMessageTimeStamp": str(-1 if earliest is None else earliest),
            "commitLogDiskRatio": str(min(logs.values())),
            **{f"commitLogDiskRatio_{path}": str(ratio) for path, ratio in logs.items()},
            "consumeQueueDiskRatio": str(used_percent(config.consume_queue_directory) / 100),
            "commitLogDirCapacity": _capacity(config.root),
        }


def _moment(value: int) -> BrokerStatsData:
    item = BrokerStatsItem(value, 0.0, float(value))
    return BrokerStatsData(item, item, item)


def _three(rates: tuple[float, ...]) -> str:
    return " ".join(map(str, rates))


def _distribution(times: PutTimes) -> str:
    """Return the histogram of put times; ends with a blank, as in RocketMQ."""
    counts = [0] * len(_PUT_TIMES)
    counts[0] = times.quick
    for milliseconds in times.slow:
        counts[bisect_right(_LIMITS, milliseconds)] += 1
    return "".join(f"{name}:{count} " for (_, name), count in zip(_PUT_TIMES, counts, strict=True))


def _capacity(path: Path) -> str:
    disk = os.statvfs(path)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    return f"Total : {_readable(total)}, Free : {_readable(free)}."


def _readable(count: int) -> str:
    """Format bytes: `512 B`, `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    exponent = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**exponent:.1f} {'KMGTPE'[exponent - 1]}iB"
