from __future__ import annotations

import asyncio
import dataclasses
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.services import metadata_sync as module
from pyromq.broker.services.metadata_sync import MetadataSync
from pyromq.broker.state.connections import Client
from pyromq.broker.state.deleted_topics import Deletion
from pyromq.broker.state.tables import BrokerTables
from pyromq.protocol.names import TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC
from pyromq.protocol.wire import acl, large_bodies
from pyromq.protocol.wire.bodies import ConsumerData, KVTable, SubscriptionData, TopicConfig
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.errors import RemotingConnectError, RemotingTimeoutError
from tests.support.brokers import small_store
from tests.support.clocks import held_loop, on_held_loop
from tests.support.patience import until
from tests.unit.broker.fakes import FakeConnection

MASTER, OTHER, REPLICA = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
CONFIG = BrokerConfig(broker_name="broker-a", broker_ip1="10.0.0.1", broker_ip2="10.0.0.1")
PRIVATE = (RequestCode.GET_ALL_CONSUMER_FILTER, RequestCode.GET_ALL_TOPIC_DELETION)
STEPS = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_TOPIC_DELETION,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_CONSUMER_FILTER,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_BROKER_RUNTIME_INFO,
)


class FakeMaster:
    """A master with real tables that answers like pyromq's or, without `is_own`, like Java's."""

    def __init__(self, root: Path) -> None:
        self.tables = BrokerTables.of(CONFIG, small_store(root))
        self.log_end = 1000
        self.min_physical_offset = 0
        self.is_own = True
        self.asked: list[RequestCode] = []
        self.requests: list[RemotingCommand] = []
        #: Answers that replace the true ones: a body, an exception or a function.
        self.instead: dict[RequestCode, bytes | Exception | Callable[..., RemotingCommand]] = {}

    @property
    def max_physical_offset(self) -> int:
        return self.log_end

    def remove_old_queues(self, *_: object) -> int:
        raise AssertionError

    def answer(self, request: RemotingCommand) -> RemotingCommand:
        code = RequestCode(request.code)
        self.asked.append(code)
        self.requests.append(request)
        instead = self.instead.get(code)
        if isinstance(instead, Exception):
            raise instead
        if callable(instead):
            return instead(request)
        if instead is None and code in PRIVATE and not self.is_own:
            return request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported"
            )
        body = self.body(code) if instead is None else instead
        if self.is_own and large_bodies.accepts_compression(request.ext_fields):
            return request.answer(
                ext_fields=dict(large_bodies.COMPRESSION), body=zlib.compress(body)
            )
        return request.answer(body=body)

    def body(self, code: RequestCode) -> bytes:
        tables = self.tables
        encoders: dict[RequestCode, Callable[[], bytes]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda: tables.topics.snapshot().encode(),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda: tables.groups.snapshot().encode(),
            RequestCode.GET_ALL_CONSUMER_OFFSET: lambda: tables.offsets.snapshot().encode(),
            RequestCode.GET_ALL_DELAY_OFFSET: lambda: tables.delay_offsets.table().encode(),
            RequestCode.GET_ALL_CONSUMER_FILTER: lambda: tables.filters.snapshot().encode(),
            RequestCode.GET_ALL_TOPIC_DELETION: lambda: tables.deleted_topics.snapshot().encode(),
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda: KVTable(
                {"commitLogMaxOffset": str(self.log_end)}
            ).encode(),
        }
        return encoders[code]()


class Replica:
    """A replica with real tables and a store that only has a length."""

    def __init__(self, root: Path, **settings: Any) -> None:
        config = dataclasses.replace(CONFIG, **settings)
        self.tables = BrokerTables.of(config, small_store(root / "replica"))
        self.masters = {MASTER: FakeMaster(root / "one"), OTHER: FakeMaster(root / "two")}
        self.master = self.masters[MASTER]
        self.address: str | None = MASTER
        self.min_physical_offset = 0
        self.max_physical_offset = self.flushed_offset = 1000
        self.queue_end = 100
        self.queue_count = 0
        self.removed: list[tuple[str, int, int]] = []
        self.sync = MetadataSync(
            config,
            self.tables,
            self,
            self,
            master_address=lambda: self.address,
            own_address=REPLICA,
        )

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - the client's interface
    ) -> RemotingCommand:
        assert timeout == 3.0
        if address not in self.masters:
            raise RemotingConnectError(address, f"cannot connect to {address}")
        return self.masters[address].answer(command)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.queue_end

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        self.removed.append((topic, end, timestamp))
        return 1

    def content(self) -> list[Any]:
        """Everything that a copy could change."""
        tables = self.tables
        return [
            tables.topics.snapshot(),
            tables.groups.snapshot(),
            tables.offsets.snapshot().encode(),
            tables.delay_offsets.table(),
            tables.filters.snapshot().encode(),
            tables.deleted_topics.snapshot(),
            list(self.removed),
        ]


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)


def fill(tables: BrokerTables) -> None:
    tables.topics.update(TopicConfig("orders", 4, 4))
    tables.groups.find("g")
    tables.offsets.commit("g", "orders", 1, 42)
    tables.offsets.commit(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0, 5)
    tables.delay_offsets.move({1: 10, 3: 30}, 0)
    sql = SubscriptionData("orders", "a > 5", sub_version=1, expression_type="SQL92")
    tables.filters.register("g", [sql])


async def test_all_tables_are_copied(replica: Replica, tmp_path: Path) -> None:
    master = replica.master.tables
    fill(master)

    assert await replica.sync.sync_now() == []

    tables = replica.tables
    assert tables.topics.snapshot() == master.topics.snapshot()
    assert tables.groups.snapshot() == master.groups.snapshot()
    assert tables.offsets.query("g", "orders", 1) == 42
    assert tables.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) == 5
    assert tables.delay_offsets.table() == master.delay_offsets.table()
    found = tables.filters.find("orders", "g")
    assert found is not None
    assert found.text == "a > 5"
    assert tuple(replica.master.asked) == STEPS
    # And on disk.
    for table in (tables.topics, tables.groups, tables.offsets, tables.filters):
        await table.file.saved()
    await tables.delay_offsets.file.saved()
    again = BrokerTables.of(CONFIG, small_store(tmp_path / "replica"))
    again.load()
    assert again.topics.snapshot() == master.topics.snapshot()
    assert again.groups.snapshot() == master.groups.snapshot()
    assert again.offsets.query("g", "orders", 1) == 42
    assert again.delay_offsets.table() == master.delay_offsets.table()
    assert again.filters.find("orders", "g") is not None


async def test_a_master_of_java_is_copied_without_pyromq_s_own_requests(replica: Replica) -> None:
    replica.master.is_own = False
    fill(replica.master.tables)
    assert await replica.sync.sync_now() == []
    assert replica.tables.topics.snapshot() == replica.master.tables.topics.snapshot()
    assert replica.tables.filters.find("orders", "g") is None
    asked = replica.master.asked
    assert set(PRIVATE) <= set(asked)
    asked.clear()
    for _ in range(60):
        assert await replica.sync.sync_now() == []
    assert not set(PRIVATE) & set(asked)
    # It may have been replaced by pyromq meanwhile.
    replica.master.is_own = True
    assert await replica.sync.sync_now() == []
    assert set(PRIVATE) <= set(asked)
    assert replica.tables.filters.find("orders", "g") is not None


async def test_unchanged_tables_are_not_decoded_again(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(replica.master.tables)
    for _ in range(2):  # settled progress changes the offsets once more
        await replica.sync.sync_now()
    for name in ("copied_topics", "copied_groups", "copied_offsets"):
        monkeypatch.setattr(module, name, lambda _: pytest.fail("decoded"))
    replica.master.asked.clear()
    assert await replica.sync.sync_now() == []
    assert tuple(replica.master.asked) == STEPS[:-1], "nor is the end of the log asked for"


async def test_local_changes_are_undone(replica: Replica) -> None:
    fill(replica.master.tables)
    await replica.sync.sync_now()
    before = replica.content()
    replica.tables.topics.create_for_send_back("%RETRY%g", 1)
    replica.tables.groups.find("other")
    replica.tables.offsets.commit("g", "orders", 1, 99)
    await replica.sync.sync_now()
    assert replica.content()[:2] == before[:2]
    assert replica.tables.offsets.query("g", "orders", 1) == 42


async def test_one_changed_offset_is_found_among_many(replica: Replica) -> None:
    offsets = replica.master.tables.offsets
    fill(replica.master.tables)
    for number in range(5000):
        offsets.commit("g", f"t{number}", 0, 1)
    for changed in range(3):
        offsets.commit("g", "t77", 0, 100 + changed)
        offsets.commit(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0, 6 + changed)
        assert await replica.sync.sync_now() == []
        copy = replica.tables.offsets
        assert len(list(copy.pairs())) == 5002
        assert copy.query("g", "t77", 0) == 100 + changed
        assert copy.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) == 6 + changed


async def test_offsets_that_the_master_lacks_stay(replica: Replica) -> None:
    replica.tables.offsets.commit("mine", "orders", 0, 7)
    fill(replica.master.tables)
    await replica.sync.sync_now()
    assert replica.tables.offsets.query("mine", "orders", 0) == 7


async def test_filters_of_connected_groups_stay(replica: Replica) -> None:
    fill(replica.master.tables)
    sql = SubscriptionData("orders", "b = 1", sub_version=9, expression_type="SQL92")
    replica.tables.consumers.register(
        ConsumerData("g", subscription_data_set=[sql]),
        Client(FakeConnection(), "c1", LanguageCode.JAVA, 407),
    )
    await replica.sync.sync_now()
    found = replica.tables.filters.find("orders", "g")
    assert found is not None
    assert found.text == "b = 1"


# Progress


async def test_progress_waits_for_the_log(replica: Replica) -> None:
    fill(replica.master.tables)
    replica.flushed_offset = 999
    await replica.sync.sync_now()
    tables = replica.tables
    assert tables.delay_offsets.table().offset_table == {}
    assert tables.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) is None
    assert tables.offsets.query("g", "orders", 1) == 42
    replica.flushed_offset = 1000
    await replica.sync.stop()
    assert tables.delay_offsets.table().offset_table == {1: 10, 3: 30}
    assert tables.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) == 5


async def test_the_end_of_the_log_is_asked_for_after_the_progress(replica: Replica) -> None:
    fill(replica.master.tables)
    delay = replica.master.tables.delay_offsets

    def answer(request: RemotingCommand) -> RemotingCommand:
        replica.master.log_end = 2000  # the deliveries that `body` counts end there
        delay.move({1: 11}, 2000)
        return request.answer(body=delay.table().encode())

    replica.master.instead[RequestCode.GET_ALL_DELAY_OFFSET] = answer
    await replica.sync.sync_now()
    assert replica.tables.delay_offsets.get(1) == 0
    replica.flushed_offset = 2000
    await replica.sync.sync_now()
    assert replica.tables.delay_offsets.get(1) == 11


async def test_progress_of_another_master_is_forgotten(replica: Replica) -> None:
    fill(replica.master.tables)
    replica.flushed_offset = 0
    await replica.sync.sync_now()
    replica.address = OTHER
    replica.masters[OTHER].log_end = 5000
    assert await replica.sync.sync_now() == []
    replica.flushed_offset = 1000
    assert await replica.sync.sync_now() == []
    assert replica.tables.delay_offsets.table().offset_table == {}


async def test_impossible_progress_is_refused(replica: Replica) -> None:
    fill(replica.master.tables)
    await replica.sync.sync_now()
    replica.master.instead[RequestCode.GET_ALL_DELAY_OFFSET] = b'{"offsetTable":{1:101}}'
    (fault,) = await replica.sync.sync_now()
    assert "SCHEDULE_TOPIC_XXXX queue 0 is 101" in fault
    assert replica.tables.delay_offsets.table().offset_table == {1: 10, 3: 30}


# Deleted topics


async def test_a_topic_deleted_and_recreated_loses_queues_and_offsets(replica: Replica) -> None:
    master = replica.master.tables
    fill(master)
    await replica.sync.sync_now()
    master.topics.delete("orders")
    master.offsets.remove_topic("orders")
    master.deleted_topics.note("orders", replica.master)
    master.topics.update(TopicConfig("orders", 4, 4))
    note = master.deleted_topics.snapshot().topics["orders"]

    assert await replica.sync.sync_now() == []

    assert replica.removed == [("orders", 1000, note.timestamp)]
    assert replica.tables.offsets.groups_of("orders") == set()
    assert replica.tables.deleted_topics.snapshot() == master.deleted_topics.snapshot()
    master.offsets.commit("g", "orders", 1, 2)
    assert await replica.sync.sync_now() == []
    assert replica.tables.offsets.query("g", "orders", 1) == 2
    assert len(replica.removed) == 1


async def test_a_deletion_is_applied_until_the_log_has_reached_it(replica: Replica) -> None:
    replica.max_physical_offset = 500
    replica.master.tables.deleted_topics.note("orders", replica.master)
    for number in range(1, 4):
        await replica.sync.sync_now()
        assert len(replica.removed) == number
    replica.max_physical_offset = 1000
    for _ in range(3):
        await replica.sync.sync_now()
    assert len(replica.removed) == 4


async def test_a_topic_that_vanished_from_java_counts_as_deleted(replica: Replica) -> None:
    master = replica.master.tables
    replica.master.is_own = False
    fill(master)
    await replica.sync.sync_now()
    master.topics.delete("orders")
    master.offsets.remove_topic("orders")
    deleted_at = master.topics.data_version.timestamp
    replica.master.log_end = 1500
    # A failure in between forgets nothing.
    replica.master.instead[RequestCode.GET_BROKER_RUNTIME_INFO] = RemotingTimeoutError(MASTER, "")
    assert len(await replica.sync.sync_now()) == 1
    assert replica.removed == []
    del replica.master.instead[RequestCode.GET_BROKER_RUNTIME_INFO]
    assert await replica.sync.sync_now() == []
    assert replica.removed == [("orders", 1500, deleted_at)]
    assert replica.tables.offsets.groups_of("orders") == set()
    assert replica.tables.deleted_topics.snapshot().topics == {"orders": Deletion(1500, deleted_at)}


async def test_the_replica_s_own_system_topics_do_not_count_as_deleted(tmp_path: Path) -> None:
    replica = Replica(tmp_path)
    replica.master.is_own = False
    replica.tables.topics.update(TopicConfig("RMQ_SYS_TRACE_TOPIC", 1, 1))
    assert await replica.sync.sync_now() == []
    assert "RMQ_SYS_TRACE_TOPIC" not in replica.tables.topics
    assert replica.removed == []
    assert replica.tables.deleted_topics.snapshot().topics == {}


# Faults


@pytest.mark.parametrize("code", STEPS)
async def test_a_step_fails_alone(
    replica: Replica, code: RequestCode, caplog: pytest.LogCaptureFixture
) -> None:
    fill(replica.master.tables)
    replica.master.instead[code] = RemotingTimeoutError(MASTER, "no response within 3 s")
    with caplog.at_level(logging.INFO, module.__name__):
        for _ in range(3):
            faults = await replica.sync.sync_now()
            assert len(faults) == 1
            assert "no response within 3 s" in faults[0]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "logged once"
    assert MASTER in warnings[0].getMessage()
    assert not warnings[0].exc_info
    del replica.master.instead[code]
    with caplog.at_level(logging.INFO, module.__name__):
        assert await replica.sync.sync_now() == []
    assert "works again" in caplog.records[-1].getMessage()
    assert replica.tables.topics.snapshot() == replica.master.tables.topics.snapshot()
    assert replica.tables.delay_offsets.table() == replica.master.tables.delay_offsets.table()


HOSTILE = [
    b"",
    b"{}",
    b"null",
    b"[1,2]",
    b"\x00\xff" * 100,
    b'{"offsetTable":',
    b'{"table":{"commitLogMaxOffset":"-5"}}',
    b'{"table":{"commitLogMaxOffset":"many"}}',
    b'{"table":{"commitLogMaxOffset":5}}',
    (
        b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{},'
        b'"subscriptionGroupTable":{},"offsetTable":[],"topics":[],"filterDataByTopic":[]}'
    ),
    (
        b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"SELF_TEST_TOPIC":{}},'
        b'"subscriptionGroupTable":{"g":{}},"offsetTable":{"t@g":{0:-9}},"topics":{"t":{}},'
        b'"filterDataByTopic":{"t":{"groupFilterData":{"g":{}}}}}'
    ),
    b"[" * 50_000,
]


@pytest.mark.parametrize("code", STEPS)
@pytest.mark.parametrize("number", range(len(HOSTILE)))
async def test_hostile_answers_change_nothing(
    replica: Replica, code: RequestCode, number: int
) -> None:
    fill(replica.master.tables)
    replica.master.tables.deleted_topics.note("old", replica.master)
    await replica.sync.sync_now()
    before = replica.content()
    # Progress must be new, else the end of the log is not asked for.
    replica.master.tables.delay_offsets.move({2: 1}, 0)
    for is_own in (True, False):
        replica.master.is_own = is_own
        replica.master.instead[code] = HOSTILE[number]
        assert len(await replica.sync.sync_now()) == 1
        if code is RequestCode.GET_BROKER_RUNTIME_INFO:
            assert replica.content() == before
        else:
            after = replica.content()
            assert after[:3] + after[4:] == before[:3] + before[4:]
            assert replica.tables.delay_offsets.get(1) == 10


@pytest.mark.parametrize("code", STEPS)
async def test_refusals_and_false_compression_are_faults(
    replica: Replica, code: RequestCode
) -> None:
    fill(replica.master.tables)
    answers: list[Callable[[RemotingCommand], RemotingCommand]] = [
        lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "no"),
        lambda request: request.answer(ResponseCode.NO_PERMISSION, None),
        lambda request: request.answer(ext_fields={"compression": "zlib"}, body=b"{}"),
        lambda request: request.answer(
            ext_fields={"compression": "zlib"}, body=zlib.compress(b"{}" * 99)[:-3]
        ),
    ]
    for answer in answers:
        replica.master.instead[code] = answer
        assert len(await replica.sync.sync_now()) == 1


async def test_a_table_beyond_a_limit_is_refused(tmp_path: Path) -> None:
    replica = Replica(tmp_path, max_topics=0)
    fill(replica.master.tables)
    before = replica.tables.topics.snapshot()
    (fault,) = await replica.sync.sync_now()
    assert "1 topics, limit 0: raise maxTopics of this replica" in fault
    assert replica.tables.topics.snapshot() == before


async def test_unusable_names_are_left_out_and_reported_once(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    fill(replica.master.tables)
    replica.master.tables.topics.update(TopicConfig("a/b", 1, 1))
    for number in range(3):
        replica.master.tables.topics.update(TopicConfig(f"t{number}", 1, 1))
        assert await replica.sync.sync_now() == []
    assert "a/b" not in replica.tables.topics
    assert "t2" in replica.tables.topics
    assert sum("left out" in record.getMessage() for record in caplog.records) == 1


async def test_a_programming_error_is_logged_with_its_trace(
    replica: Replica, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replica.tables.topics, "take_over", lambda _: (_ for _ in ()).throw(KeyError("x"))
    )
    assert len(await replica.sync.sync_now()) == 1
    assert caplog.records[-1].exc_info
    assert replica.tables.groups.snapshot() == replica.master.tables.groups.snapshot()


# Signing


async def test_requests_are_signed_if_keys_are_set(tmp_path: Path) -> None:
    replica = Replica(tmp_path, replication_access_key="key", replication_secret_key="hush")
    await replica.sync.sync_now()
    assert replica.master.requests
    for request in replica.master.requests:
        fields = request.ext_fields
        assert fields["AccessKey"] == "key"
        assert fields["Signature"] == acl.signature_of(fields, b"", "hush")
        assert "hush" not in str(request)


async def test_requests_are_not_signed_without_keys(replica: Replica) -> None:
    await replica.sync.sync_now()
    assert all("AccessKey" not in request.ext_fields for request in replica.master.requests)


# When


async def test_nothing_is_copied_from_nowhere_or_from_itself(replica: Replica) -> None:
    for address in (None, "", REPLICA):
        replica.address = address
        assert await replica.sync.sync_now() == ["the address of the master is unknown"]
    assert replica.master.asked == []


@on_held_loop
async def test_rounds_begin_with_the_address_and_repeat(tmp_path: Path) -> None:
    replica = Replica(tmp_path)
    replica.address = None
    rounds: list[str | None] = []

    async def count() -> list[str]:
        rounds.append(replica.address)
        replica.sync._due = held_loop().time() + 10
        replica.sync._master = replica.address
        replica.sync._queue_count = replica.queue_count
        return []

    replica.sync.sync_now = count  # type: ignore[method-assign]
    loop = held_loop()
    replica.sync.start()
    for _ in range(5):
        await loop.pass_time(1.0)
    assert rounds == []
    replica.address = MASTER
    await loop.pass_time(1.0)
    assert rounds == [MASTER]
    for _ in range(9):
        await loop.pass_time(1.0)
    assert rounds == [MASTER]
    await loop.pass_time(1.0)
    assert rounds == [MASTER, MASTER]
    replica.address = OTHER
    await loop.pass_time(1.0)
    assert rounds == [MASTER, MASTER, OTHER]
    replica.queue_count += 1  # messages of a new queue arrived
    await loop.pass_time(1.0)
    assert rounds == [MASTER, MASTER, OTHER, OTHER]
    await replica.sync.stop()
    for _ in range(30):
        await loop.pass_time(1.0)
    assert len(rounds) == 4


async def test_the_first_round_begins_at_once(replica: Replica) -> None:
    fill(replica.master.tables)
    replica.sync.start()
    await until(lambda: "orders" in replica.tables.topics)
    await replica.sync.stop()
    await replica.sync.stop()


async def test_rounds_do_not_overlap(replica: Replica) -> None:
    replica.sync.start()
    await asyncio.gather(*(replica.sync.sync_now() for _ in range(3)))
    await replica.sync.stop()
    asked = [code for code in replica.master.asked if code in STEPS[:6]]
    assert asked == list(STEPS[:6]) * (len(asked) // 6)
