"""The metrics of rocketmq-exporter under its names, for dashboards that were made for it.

Served if `metricsExporterNamesEnable` is set. Differences from the exporter, on purpose:

- Values are of this scrape, not up to a minute old, and each broker serves its own part.
- Labels whose values change split a series in two, so they are left out: the number and addresses
  of online consumers, the boot time, the version. `rocketmq_group_count` has the number.
- `..._total` are counters; the exporter calls everything a gauge.
- Left out: `rocketmq_client_*`, which would ask every client in every scrape, and
  `rocketmq_group_consume_tps` and `..._total_offset`, which the exporter never fills.

Runs in slices on the loop; disks are measured on a thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from pyromq.broker.metrics.lag import LagMetrics
from pyromq.broker.metrics.storage import Disk, disk_of
from pyromq.broker.metrics.topics import STEP
from pyromq.broker.parts import BrokerParts
from pyromq.broker.services import stats
from pyromq.broker.services.stats import Totals
from pyromq.metrics.family import Family, Source, counter, gauge
from pyromq.metrics.page import Page, Steps, escaped, number
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.names import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

_BROKER: Final = ("brokerIP", "broker")
_TOPIC: Final = ("broker", "topic")
_GROUP: Final = ("broker", "group")
_BOTH: Final = ("broker", "topic", "group")
_RUNTIME: Final = "rocketmq_brokeruntime_"
#: Free buffers of a broker without a pool, as RocketMQ reports them.
_NO_POOL: Final = 0x7FFFFFFF
#: Upper bounds of put times, in milliseconds, and how the exporter calls them.
_PUT_BOUNDS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_PUT_NAMES: Final = (
    *("0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s"),
    *("1to2s", "2to3s", "3to4s", "4to5s", "5to10s", "10stomore"),
)
_RATES: Final[tuple[tuple[str, Callable[[Totals], int]], ...]] = (
    ("put_tps", lambda each: each.puts),
    ("getfound_tps", lambda each: each.found),
    ("getmiss_tps", lambda each: each.missed),
    ("gettotal_tps", lambda each: each.found + each.missed),
    ("gettransfered_tps", lambda each: each.transferred),
)
_SECONDS: Final = (10, 60, 600)


def _exporter(name: str, text: str, labels: tuple[str, ...]) -> Family:
    return gauge(name, text, labels, Source.EXPORTER)


BROKER_TPS: Final = _exporter("rocketmq_broker_tps", "Messages stored per second.", _BROKER)
BROKER_QPS: Final = _exporter("rocketmq_broker_qps", "Messages pulled per second.", _BROKER)
LOG_DIFF: Final = _exporter(
    "rocketmq_broker_commitlog_diff",
    "Bytes that the replica which is furthest behind lacks; 0 without replicas.",
    _BROKER,
)
PRODUCER_TPS: Final = _exporter(
    "rocketmq_producer_tps", "Messages stored in a topic per second.", _TOPIC
)
PRODUCER_SIZE: Final = _exporter(
    "rocketmq_producer_message_size", "Bytes stored in a topic per second.", _TOPIC
)
PRODUCER_OFFSET: Final = _exporter(
    "rocketmq_producer_offset", "Sum of the maximum offsets of a topic's queues.", _TOPIC
)
RETRY_OFFSET: Final = _exporter(
    "rocketmq_topic_retry_offset", "Sum of the maximum offsets of a retry topic.", _TOPIC
)
DLQ_OFFSET: Final = _exporter(
    "rocketmq_topic_dlq_offset", "Sum of the maximum offsets of a dead-letter topic.", _GROUP
)
PRODUCER_COUNT: Final = _exporter(
    "rocketmq_producer_count", "Connected producers of a group.", _GROUP
)
GROUP_COUNT: Final = _exporter("rocketmq_group_count", "Connected consumers of a group.", _GROUP)
CONSUMER_TPS: Final = _exporter(
    "rocketmq_consumer_tps", "Messages of a topic that a group pulled per second.", _BOTH
)
CONSUMER_SIZE: Final = _exporter(
    "rocketmq_consumer_message_size", "Bytes of a topic that a group pulled per second.", _BOTH
)
CONSUMER_OFFSET: Final = _exporter(
    "rocketmq_consumer_offset", "Sum of the committed offsets of a group in a topic.", _BOTH
)
SEND_BACK: Final = _exporter(
    "rocketmq_send_back_nums", "Messages that a group sent back in the last minute.", _BOTH
)
GET_LATENCY: Final = _exporter(
    "rocketmq_group_get_latency_by_storetime",
    "Age of the oldest message that a group has not committed, in thousandths of a second.",
    _BOTH,
)
GROUP_DIFF: Final = _exporter(
    "rocketmq_group_diff", "Messages of a topic that a group has not committed.", _BOTH
)
RETRY_DIFF: Final = _exporter(
    "rocketmq_group_retrydiff", "Messages of its retry topic that a group has not committed.", _BOTH
)
DLQ_DIFF: Final = _exporter("rocketmq_group_dlqdiff", "Dead letters of a group.", _BOTH)

_RUNTIME_NAMES: Final = (
    *("msg_put_total_today_now", "msg_gettotal_today_now", "msg_puttotal_todaymorning"),
    *("msg_gettotal_todaymorning", "msg_puttotal_yesterdaymorning"),
    *("msg_gettotal_yesterdaymorning", "dispatch_behind_bytes", "dispatch_maxbuffer"),
    *("put_message_size_total", "put_message_average_size", "putmessage_times_total"),
    *("putmessage_entire_time_max", "getmessage_entire_time_max", "put_latency_99"),
    *("put_latency_999", "pagecache_lock_time_mills", "earliest_message_timestamp"),
    *("start_accept_sendrequest_time", "commitlog_disk_ratio", "consumequeue_disk_ratio"),
    *("commitlogdir_capacity_total", "commitlogdir_capacity_free", "commitlog_maxoffset"),
    *("commitlog_minoffset", "remain_howmanydata_toflush", "remain_transientstore_buffer_numbs"),
    *("send_threadpool_queue_size", "pull_threadpoolqueue_size", "query_threadpoolqueue_size"),
    *("send_threadpoolqueue_capacity", "pull_threadpoolqueue_capacity"),
    *("query_threadpool_queue_capacity", "send_threadpoolqueue_headwait_timemills"),
    *("pull_threadpoolqueue_headwait_timemills", "query_threadpoolqueue_headwait_timemills"),
    *(f"{name}{seconds}" for name, _ in _RATES for seconds in _SECONDS),
    *(f"pmdt_{name}" for name in _PUT_NAMES),
)
RUNTIME: Final = {
    name: (counter if name.endswith("_total") else gauge)(
        _RUNTIME + name,
        f"A value of the broker's runtime info, as rocketmq-exporter calls it: {name}.",
        ("brokerIP", "brokerHost"),
        Source.EXPORTER,
    )
    for name in _RUNTIME_NAMES
}

FAMILIES: Final = (
    BROKER_TPS,
    BROKER_QPS,
    LOG_DIFF,
    PRODUCER_TPS,
    PRODUCER_SIZE,
    PRODUCER_OFFSET,
    RETRY_OFFSET,
    DLQ_OFFSET,
    PRODUCER_COUNT,
    GROUP_COUNT,
    CONSUMER_TPS,
    CONSUMER_SIZE,
    CONSUMER_OFFSET,
    SEND_BACK,
    GET_LATENCY,
    GROUP_DIFF,
    RETRY_DIFF,
    DLQ_DIFF,
    *RUNTIME.values(),
)


class ExporterMetrics:
    """What rocketmq-exporter would serve of this broker."""

    def __init__(self, parts: BrokerParts, lag: LagMetrics) -> None:
        """`lag` has written the same page before."""
        self._parts = parts
        self._config = parts.config
        self._store = parts.store
        self._stats = parts.stats
        self._tables = parts.tables
        self._lag = lag
        self._label = f',broker="{escaped(parts.config.broker_name)}"'

    def collect(self, page: Page) -> Steps:
        """Write the families of this module, if they are wanted."""
        if not self._config.metrics_exporter_names_enable:
            return
        self._broker(page)
        yield from self._topics(page)
        yield from self._groups(page)
        self._clients(page)
        yield None
        disks, earliest = yield self._measure
        self._runtime(page, disks, -1 if earliest is None else earliest)

    def _broker(self, page: Page) -> None:
        config = self._config
        labels = f',brokerIP="{escaped(self._parts.address)}"{self._label}'
        for family, name in (
            (BROKER_TPS, stats.BROKER_PUT_NUMS),
            (BROKER_QPS, stats.BROKER_GET_NUMS),
        ):
            page.add(family, (labels, self._stats.minute(name, config.broker_cluster_name).tps))
        replicas = self._parts.replication_figures().get("replicas", [])
        page.add(LOG_DIFF, (labels, max((each["lag_bytes"] for each in replicas), default=0)))

    def _topics(self, page: Page) -> Iterator[None]:
        tps, size = page.block(PRODUCER_TPS), page.block(PRODUCER_SIZE)
        offsets, retries = page.block(PRODUCER_OFFSET), page.block(RETRY_OFFSET)
        dead = page.block(DLQ_OFFSET)
        for position, topic in enumerate(list(self._tables.topics.names())):
            if not position % STEP:
                yield None
            config = self._tables.topics.get(topic)
            if config is None:
                continue
            end = sum(self._store.max_offset(topic, each) for each in range(config.read_queue_nums))
            labels = f'{self._label},topic="{escaped(topic)}"'
            if topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
                group = escaped(topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX))
                dead.add(f'{self._label},group="{group}"', end)
            elif topic.startswith(RETRY_TOPIC_PREFIX):
                retries.add(labels, end)
            else:
                tps.add(labels, number(self._stats.minute(stats.TOPIC_PUT_NUMS, topic).tps))
                size.add(labels, number(self._stats.minute(stats.TOPIC_PUT_SIZE, topic).tps))
                offsets.add(labels, end)
        page.close(tps, size, offsets, retries, dead)

    def _groups(self, page: Page) -> Iterator[None]:
        tps, size = page.block(CONSUMER_TPS), page.block(CONSUMER_SIZE)
        offsets, sent_back = page.block(CONSUMER_OFFSET), page.block(SEND_BACK)
        latency, diff = page.block(GET_LATENCY), page.block(GROUP_DIFF)
        retry, dead = page.block(RETRY_DIFF), page.block(DLQ_DIFF)
        for position, (topic, group, lag, age) in enumerate(self._lag.latest):
            if not position % STEP:
                yield None
            key = f"{topic}@{group}"
            labels = f'{self._label},topic="{escaped(topic)}",group="{escaped(group)}"'
            tps.add(labels, number(self._stats.minute(stats.GROUP_GET_NUMS, key).tps))
            size.add(labels, number(self._stats.minute(stats.GROUP_GET_SIZE, key).tps))
            offsets.add(labels, sum(self._tables.offsets.queues(group, topic).values()))
            sent_back.add(labels, self._stats.minute(stats.SNDBCK_PUT_NUMS, key).sum)
            latency.add(labels, age)
            (retry if topic.startswith(RETRY_TOPIC_PREFIX) else diff).add(labels, lag)
        for topic in list(self._tables.topics.names()):
            if topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
                group = escaped(topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX))
                labels = f'{self._label},topic="{escaped(topic)}",group="{group}"'
                queue = self._store.find_queue(topic, 0)
                dead.add(labels, 0 if queue is None else queue.next_offset - queue.min_offset)
        page.close(tps, size, offsets, sent_back, latency, diff, retry, dead)

    def _clients(self, page: Page) -> None:
        producers, consumers = page.block(PRODUCER_COUNT), page.block(GROUP_COUNT)
        for group in self._tables.producers.groups():
            labels = f'{self._label},group="{escaped(group)}"'
            producers.add(labels, len(self._tables.producers.members(group)))
        for group in self._tables.consumers.names():
            members = self._tables.consumers.find(group)
            labels = f'{self._label},group="{escaped(group)}"'
            consumers.add(labels, 0 if members is None else len(members.members))
        page.close(producers, consumers)

    def _measure(self) -> tuple[tuple[Disk, Disk], int | None]:
        config = self._store.config
        disks = disk_of(config.commit_log_directory), disk_of(config.consume_queue_directory)
        return disks, self._store.store_time(self._store.min_physical_offset)

    def _runtime(self, page: Page, disks: tuple[Disk, Disk], earliest: int) -> None:
        address = escaped(self._parts.address)
        host = escaped(format_address(self._config.broker_ip1, 0).rpartition(":")[0])
        labels = f',brokerIP="{address}",brokerHost="{host}"'
        values = {
            **self._totals(),
            **self._positions(disks, earliest),
            **self._lanes(),
            **self._put_times(),
        }
        for name, family in RUNTIME.items():
            page.add(family, (labels, values[name]))

    def _totals(self) -> dict[str, float]:
        found = self._stats
        totals, times = found.totals, found.put_times
        values: dict[str, float] = {
            "msg_put_total_today_now": totals.puts,
            "msg_gettotal_today_now": totals.transferred,
            "msg_puttotal_todaymorning": found.this_morning.puts,
            "msg_gettotal_todaymorning": found.this_morning.transferred,
            "msg_puttotal_yesterdaymorning": found.yesterday_morning.puts,
            "msg_gettotal_yesterdaymorning": found.yesterday_morning.transferred,
            "put_message_size_total": totals.put_bytes,
            "put_message_average_size": totals.put_bytes / max(1, totals.puts),
            "putmessage_times_total": totals.puts,
            "putmessage_entire_time_max": found.slowest_put,
            "getmessage_entire_time_max": 0,
            "put_latency_99": times.percentile(0.99),
            "put_latency_999": times.percentile(0.999),
        }
        for name, number_of in _RATES:
            for seconds, rate in zip(_SECONDS, found.rates(number_of), strict=True):
                values[f"{name}{seconds}"] = rate
        return values

    def _positions(self, disks: tuple[Disk, Disk], earliest: int) -> dict[str, float]:
        store, (log, queues) = self._store, disks
        return {
            "dispatch_behind_bytes": store.dispatch_behind,
            "dispatch_maxbuffer": 0,
            "pagecache_lock_time_mills": 0,
            "earliest_message_timestamp": earliest,
            "start_accept_sendrequest_time": self._config.start_accept_send_request_time_stamp,
            "commitlog_disk_ratio": log.used / max(1, log.usable),
            "consumequeue_disk_ratio": queues.used / max(1, queues.usable),
            "commitlogdir_capacity_total": log.usable,
            "commitlogdir_capacity_free": log.usable - log.used,
            "commitlog_maxoffset": store.max_physical_offset,
            "commitlog_minoffset": store.min_physical_offset,
            "remain_howmanydata_toflush": max(0, store.max_physical_offset - store.flushed_offset),
            "remain_transientstore_buffer_numbs": (
                _NO_POOL if store.free_buffers is None else store.free_buffers
            ),
        }

    def _lanes(self) -> dict[str, float]:
        lanes = self._parts.lanes
        return {
            "send_threadpool_queue_size": lanes.send.size,
            "pull_threadpoolqueue_size": lanes.pull.size,
            "query_threadpoolqueue_size": lanes.query.size,
            "send_threadpoolqueue_capacity": lanes.send.capacity,
            "pull_threadpoolqueue_capacity": lanes.pull.capacity,
            "query_threadpool_queue_capacity": lanes.query.capacity,
            "send_threadpoolqueue_headwait_timemills": lanes.send.head_wait_ms,
            "pull_threadpoolqueue_headwait_timemills": lanes.pull.head_wait_ms,
            "query_threadpoolqueue_headwait_timemills": lanes.query.head_wait_ms,
        }

    def _put_times(self) -> dict[str, float]:
        times = self._stats.put_times
        counts = [0] * len(_PUT_NAMES)
        counts[0] = times.quick
        for milliseconds in times.slow:
            counts[bisect_right(_PUT_BOUNDS, milliseconds)] += 1
        return {f"pmdt_{name}": count for name, count in zip(_PUT_NAMES, counts, strict=True)}
