from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyromq.nameserver.route_table import (
    BROKER_EXPIRY,
    BrokerIdentity,
    RegistrationResult,
    RouteTable,
)
from pyromq.protocol.wire.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
)
from tests.support.examples import examples


class Peer:
    """Stands for a connection."""


MASTER = BrokerIdentity("c1", "a", 0, "10.0.0.1:10911")
REPLICA = BrokerIdentity("c1", "a", 1, "10.0.0.2:10911")
OTHER = BrokerIdentity("c2", "b", 0, "10.0.0.3:10911")


def topics(*configs: TopicConfig, counter: int = 1) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper(
        {config.topic_name: config for config in configs}, DataVersion(0, counter)
    )


def register(
    table: RouteTable[Peer],
    identity: BrokerIdentity,
    wrapper: TopicConfigSerializeWrapper | None = None,
    *,
    filter_servers: list[str] | None = None,
    connection: Peer | None = None,
    now: float = 0.0,
) -> RegistrationResult:
    return table.register(
        identity,
        "ha-" + identity.broker_addr,
        wrapper or topics(TopicConfig("t")),
        filter_servers,
        connection or Peer(),
        now,
    )


@pytest.fixture
def table() -> RouteTable[Peer]:
    return RouteTable()


def is_empty(table: RouteTable[Peer]) -> bool:
    info = table.cluster_info()
    return not (info.broker_addr_table or info.cluster_addr_table or table.all_topics().topic_list)


def test_a_registered_topic_has_a_route(table: RouteTable[Peer]) -> None:
    assert register(table, MASTER, topics(TopicConfig("t", 8, 4, 6, topic_sys_flag=1))) == (
        RegistrationResult()
    )
    route = table.route("t")
    assert route is not None
    assert route.queue_datas == [QueueData("a", 8, 4, 6, 1)]
    assert route.broker_datas == [BrokerData("c1", "a", {0: MASTER.broker_addr})]
    assert (route.filter_server_table, route.order_topic_conf) == ({}, None)
    assert table.route("unknown") is None


def test_a_route_is_a_copy(table: RouteTable[Peer]) -> None:
    register(table, MASTER)
    route = table.route("t")
    assert route is not None
    route.queue_datas.clear()
    route.broker_datas[0].broker_addrs.clear()
    again = table.route("t")
    assert again is not None
    assert again.queue_datas
    assert again.broker_datas[0].broker_addrs == {0: MASTER.broker_addr}


def test_a_replica_learns_its_master_once_there_is_one(table: RouteTable[Peer]) -> None:
    assert register(table, REPLICA) == RegistrationResult()
    register(table, MASTER)
    assert register(table, REPLICA) == RegistrationResult(
        "ha-" + MASTER.broker_addr, MASTER.broker_addr
    )


def test_a_replica_does_not_speak_for_topics(table: RouteTable[Peer]) -> None:
    register(table, REPLICA, topics(TopicConfig("t")))
    assert table.all_topics() == TopicList(set())
    register(table, MASTER, topics(TopicConfig("t", 4, 4)))
    register(table, REPLICA, topics(TopicConfig("t", 9, 9), counter=99))
    route = table.route("t")
    assert route is not None
    assert route.queue_datas == [QueueData("a", 4, 4, 6, 0)]
    assert route.broker_datas[0].broker_addrs == {
        0: MASTER.broker_addr,
        1: REPLICA.broker_addr,
    }


def test_queues_change_only_with_the_data_version(table: RouteTable[Peer]) -> None:
    def read_queues() -> int:
        route = table.route("t")
        assert route is not None
        return route.queue_datas[0].read_queue_nums

    register(table, MASTER, topics(TopicConfig("t", 4, 4)))
    register(table, MASTER, topics(TopicConfig("t", 5, 5)))
    assert read_queues() == 4
    register(table, MASTER, topics(TopicConfig("t", 5, 5), counter=2))
    assert read_queues() == 5


def test_a_topic_that_the_master_no_longer_lists_stays(table: RouteTable[Peer]) -> None:
    register(table, MASTER, topics(TopicConfig("t"), TopicConfig("u")))
    register(table, MASTER, topics(TopicConfig("t"), counter=2))
    assert table.all_topics().topic_list == {"t", "u"}


def test_a_replica_that_becomes_master_has_one_id(table: RouteTable[Peer]) -> None:
    register(table, MASTER)
    register(table, REPLICA)
    promoted = BrokerIdentity("c1", "a", 0, REPLICA.broker_addr)
    register(table, promoted, topics(TopicConfig("new")))
    assert table.cluster_info().broker_addr_table["a"].broker_addrs == {0: REPLICA.broker_addr}
    assert "new" in table.all_topics().topic_list


def test_filter_servers_come_with_the_route_and_go(table: RouteTable[Peer]) -> None:
    def filter_servers() -> dict[str, list[str]]:
        route = table.route("t")
        assert route is not None
        return route.filter_server_table

    register(table, MASTER, filter_servers=["f:1"])
    assert filter_servers() == {MASTER.broker_addr: ["f:1"]}
    register(table, MASTER, filter_servers=None)
    assert filter_servers() == {MASTER.broker_addr: ["f:1"]}
    register(table, MASTER, filter_servers=[])
    assert filter_servers() == {}


def test_unregistering_the_last_address_removes_everything(table: RouteTable[Peer]) -> None:
    register(table, MASTER)
    register(table, REPLICA)
    table.unregister(MASTER)
    route = table.route("t")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: REPLICA.broker_addr}
    table.unregister(REPLICA)
    assert is_empty(table)
    assert table.data_version(REPLICA.broker_addr) is None
    table.unregister(REPLICA)  # a second goodbye harms nobody


def test_a_late_goodbye_does_not_remove_the_successor(table: RouteTable[Peer]) -> None:
    register(table, MASTER)
    moved = BrokerIdentity("c1", "a", 0, "10.0.0.9:10911")
    register(table, moved)
    table.unregister(MASTER)
    assert table.cluster_info().broker_addr_table["a"].broker_addrs == {0: moved.broker_addr}
    assert table.data_version(MASTER.broker_addr) is None
    assert table.data_version(moved.broker_addr) is not None


def test_one_broker_of_two_leaves_the_other_alone(table: RouteTable[Peer]) -> None:
    register(table, MASTER, topics(TopicConfig("t"), TopicConfig("only-a")))
    register(table, OTHER)
    table.unregister(MASTER)
    route = table.route("t")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["b"]
    assert table.all_topics().topic_list == {"t"}
    assert set(table.cluster_info().cluster_addr_table) == {"c2"}


def test_a_broken_connection_removes_its_broker(table: RouteTable[Peer]) -> None:
    connection = Peer()
    register(table, MASTER, connection=connection)
    assert table.remove_connection(Peer()) == []
    assert table.route("t") is not None
    assert table.remove_connection(connection) == [MASTER.broker_addr]
    assert is_empty(table)


def test_a_broken_connection_removes_all_brokers_that_used_it(table: RouteTable[Peer]) -> None:
    connection = Peer()
    register(table, MASTER, connection=connection)
    register(table, OTHER, connection=connection)
    assert set(table.remove_connection(connection)) == {MASTER.broker_addr, OTHER.broker_addr}
    assert is_empty(table)


def test_an_old_connection_that_breaks_late_harms_nobody(table: RouteTable[Peer]) -> None:
    old, new = Peer(), Peer()
    register(table, MASTER, connection=old)
    register(table, MASTER, connection=new)
    assert table.remove_connection(old) == []
    assert table.route("t") is not None


def test_a_silent_broker_expires(table: RouteTable[Peer]) -> None:
    silent, busy = Peer(), Peer()
    register(table, MASTER, connection=silent, now=0.0)
    register(table, OTHER, connection=busy, now=0.0)
    assert table.remove_expired(BROKER_EXPIRY) == []
    register(table, OTHER, connection=busy, now=BROKER_EXPIRY)
    assert table.remove_expired(BROKER_EXPIRY + 0.001) == [silent]
    assert set(table.cluster_info().broker_addr_table) == {"b"}


def test_a_touched_broker_does_not_expire(table: RouteTable[Peer]) -> None:
    register(table, MASTER, now=0.0)
    table.touch(MASTER.broker_addr, 50.0)
    table.touch("nobody:1", 50.0)
    assert table.remove_expired(BROKER_EXPIRY + 49.0) == []
    assert len(table.remove_expired(BROKER_EXPIRY + 51.0)) == 1


def test_a_shared_connection_stays_open_while_one_broker_on_it_lives(
    table: RouteTable[Peer],
) -> None:
    shared = Peer()
    register(table, MASTER, connection=shared, now=0.0)
    register(table, OTHER, connection=shared, now=100.0)
    assert table.remove_expired(150.0) == []
    assert set(table.cluster_info().broker_addr_table) == {"b"}


def test_a_broker_that_expired_registers_anew_with_the_same_version(
    table: RouteTable[Peer],
) -> None:
    register(table, MASTER, now=0.0)
    table.remove_expired(500.0)
    register(table, MASTER, now=501.0)
    assert table.route("t") is not None


def test_data_versions(table: RouteTable[Peer]) -> None:
    assert table.data_version(MASTER.broker_addr) is None
    assert table.is_changed(MASTER.broker_addr, DataVersion(0, 1))
    register(table, MASTER)
    assert table.data_version(MASTER.broker_addr) == DataVersion(0, 1)
    assert not table.is_changed(MASTER.broker_addr, DataVersion(0, 1))
    assert table.is_changed(MASTER.broker_addr, DataVersion(1, 1))


def test_lists_of_topics(table: RouteTable[Peer]) -> None:
    assert table.system_topics() == TopicList(set(), None)
    register(
        table,
        MASTER,
        topics(
            TopicConfig("plain"),
            TopicConfig("unit", topic_sys_flag=1),
            TopicConfig("sub", topic_sys_flag=2),
            TopicConfig("both", topic_sys_flag=3),
        ),
    )
    register(table, OTHER, topics(TopicConfig("plain"), TopicConfig("c2-only")))
    assert table.all_topics().topic_list == {"plain", "unit", "sub", "both", "c2-only"}
    assert table.topics_of_cluster("c2").topic_list == {"plain", "c2-only"}
    assert table.topics_of_cluster("nowhere").topic_list == set()
    assert table.system_topics() == TopicList({"c1", "c2", "a", "b"}, MASTER.broker_addr)
    assert table.unit_topics().topic_list == {"unit", "both"}
    assert table.unit_subscribed_topics().topic_list == {"sub", "both"}
    assert table.unit_subscribed_common_topics().topic_list == {"sub"}


def test_write_permission_of_one_broker(table: RouteTable[Peer]) -> None:
    def permissions() -> dict[str, int]:
        route = table.route("t")
        assert route is not None
        return {queue.broker_name: queue.perm for queue in route.queue_datas}

    register(table, MASTER, topics(TopicConfig("t", perm=7), TopicConfig("u")))
    register(table, OTHER)
    assert table.wipe_write_permission("a") == 2
    assert permissions() == {"a": 5, "b": 6}
    assert table.add_write_permission("a") == 2
    assert permissions() == {"a": 6, "b": 6}
    assert table.wipe_write_permission("nobody") == 0


def test_deleting_topics(table: RouteTable[Peer]) -> None:
    register(table, MASTER, topics(TopicConfig("t"), TopicConfig("u")))
    register(table, OTHER)
    table.delete_topic("t", "c1")
    route = table.route("t")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["b"]
    table.delete_topic("t", "nowhere")
    table.delete_topic("t", "c2")
    assert table.route("t") is None
    table.delete_topic("u")
    table.delete_topic("u")
    table.delete_topic("u", "c1")
    assert table.all_topics().topic_list == set()


def many_brokers(count: int) -> tuple[RouteTable[Peer], Peer]:
    table: RouteTable[Peer] = RouteTable()
    connection = Peer()
    for number in range(count):
        identity = BrokerIdentity(f"c{number}", f"b{number}", 0, f"h{number}:1")
        register(table, identity, topics(TopicConfig(f"t{number}")), connection=connection)
    return table, connection


def removals() -> dict[str, Callable[[RouteTable[Peer], Peer, int], object]]:
    """Ways to remove every broker of a table, or to change all their topics."""

    def unregister(table: RouteTable[Peer], _: Peer, count: int) -> None:
        for number in range(count):
            table.unregister(BrokerIdentity(f"c{number}", f"b{number}", 0, f"h{number}:1"))

    def move(table: RouteTable[Peer], connection: Peer, count: int) -> None:
        for number in range(count):
            identity = BrokerIdentity(f"c{number}", f"b{number}", 0, f"other{number}:1")
            register(table, identity, connection=connection)

    def wipe(table: RouteTable[Peer], _: Peer, count: int) -> None:
        for number in range(count):
            table.wipe_write_permission(f"b{number}")

    def delete_topics(table: RouteTable[Peer], _: Peer, count: int) -> None:
        for number in range(count):
            table.delete_topic(f"t{number}", f"c{number}")

    return {
        "disconnect": lambda table, connection, _: table.remove_connection(connection),
        "expire": lambda table, _, __: table.remove_expired(BROKER_EXPIRY + 1),
        "unregister": unregister,
        "move": move,
        "wipe": wipe,
        "delete topics": delete_topics,
    }


@pytest.mark.parametrize("way", list(removals()))
def test_a_removal_costs_what_it_removes(way: str) -> None:
    def cost(count: int) -> float:
        """CPU time, the least of some tries."""
        seconds = []
        for _ in range(3):
            table, connection = many_brokers(count)
            begin = time.thread_time()
            removals()[way](table, connection, count)
            seconds.append(time.thread_time() - begin)
        return min(seconds)

    # Eight times as many: quadratic is sixty-four times as long.
    assert cost(3200) < 25 * cost(400)


def test_a_changed_registration_is_one_line_in_the_log(
    table: RouteTable[Peer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    register(table, MASTER, topics(*(TopicConfig(f"t{number}") for number in range(500))))
    caplog.clear()
    register(
        table,
        MASTER,
        topics(*(TopicConfig(f"t{number}", perm=4) for number in range(500)), counter=2),
    )
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == "broker 'a': 0 new topics, 500 changed: 't0', 't1', 't2' and 497 more"


def _pairs(index: Mapping[Any, Iterable[Any]]) -> set[tuple[Any, Any]]:
    return {(key, item) for key, items in index.items() for item in items}


names = st.sampled_from(["a", "b", "c"])
identities = st.builds(
    BrokerIdentity,
    cluster_name=st.sampled_from(["c1", "c2"]),
    broker_name=names,
    broker_id=st.integers(0, 2),
    broker_addr=st.sampled_from(["h1:1", "h2:1", "h3:1"]),
)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Whatever happens in whatever order, the table's invariants hold."""

    def __init__(self) -> None:
        super().__init__()
        self.table: RouteTable[Peer] = RouteTable()
        self.peers = [Peer(), Peer()]
        self.now = 0.0

    @rule(
        identity=identities,
        peer=st.integers(0, 1),
        topic_names=st.sets(st.sampled_from(["t", "u"])),
        counter=st.integers(0, 2),
    )
    def register(
        self, identity: BrokerIdentity, peer: int, topic_names: set[str], counter: int
    ) -> None:
        wrapper = topics(*map(TopicConfig, topic_names), counter=counter)
        self.table.register(identity, "", wrapper, ["f"], self.peers[peer], self.now)

    @rule(identity=identities)
    def unregister(self, identity: BrokerIdentity) -> None:
        self.table.unregister(identity)

    @rule(peer=st.integers(0, 1))
    def disconnect(self, peer: int) -> None:
        self.table.remove_connection(self.peers[peer])

    @rule(seconds=st.floats(0, 200))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.table.remove_expired(self.now)

    @rule(topic=st.sampled_from(["t", "u"]), cluster=st.sampled_from([None, "c1", "c2"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)

    @invariant()
    def addresses_are_unique_within_a_name_and_never_none(self) -> None:
        for broker in self.table.cluster_info().broker_addr_table.values():
            addresses = list(broker.broker_addrs.values())
            assert addresses
            assert len(addresses) == len(set(addresses))

    @invariant()
    def every_address_can_expire(self) -> None:
        for broker in self.table.cluster_info().broker_addr_table.values():
            for address in broker.broker_addrs.values():
                assert self.table.data_version(address) is not None

    @invariant()
    def clusters_hold_exactly_the_known_brokers(self) -> None:
        info = self.table.cluster_info()
        assert all(info.cluster_addr_table.values())
        assert set().union(*info.cluster_addr_table.values()) == set(info.broker_addr_table)

    @invariant()
    def indexes_say_the_same_as_the_tables(self) -> None:
        table = self.table
        brokers = table.cluster_info().broker_addr_table.values()
        places = {(a, b.broker_name) for b in brokers for a in b.broker_addrs.values()}
        assert _pairs(table._names_at) == places
        assert table._broker_count == len(places)
        assert {(live.connection, a) for a, live in table._live.items()} == _pairs(
            table._addresses_on
        )
        assert set(table._live) == set(table._names_at)
        queues = {(name, topic) for topic, parts in table._topics.items() for name in parts}
        assert _pairs(table._topics_of) == queues
        assert table._topic_count == len(queues)
        assert {(name, cluster) for cluster, name in _pairs(table._clusters)} == _pairs(
            table._clusters_of
        )
        assert set(table._filter_servers) <= set(table._live)
        for index in (table._names_at, table._addresses_on, table._clusters_of):
            assert all(index.values())
        assert set(table._topics_of) <= set(table._brokers)

    @invariant()
    def every_listed_topic_has_a_route(self) -> None:
        for topic in self.table.all_topics().topic_list:
            route = self.table.route(topic)
            assert route is not None
            assert {queue.broker_name for queue in route.queue_datas} == {
                broker.broker_name for broker in route.broker_datas
            }


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None
)


def test_topics_of_a_registration_that_are_known_as_they_are_can_be_left_out(
    table: RouteTable[Peer],
) -> None:
    register(table, MASTER, topics(TopicConfig("same"), TopicConfig("other")))
    raw = {name: TopicConfig(name).to_value() for name in ("same", "other", "new", "renamed")}
    raw["other"]["perm"] = 4
    raw["renamed"]["topicName"] = "same"

    assert set(table.unknown_topics(MASTER.broker_name, raw)) == {"other", "new", "renamed"}
    assert set(table.unknown_topics("another broker", raw)) == set(raw)
    table.wipe_write_permission(MASTER.broker_name)
    assert "same" in table.unknown_topics(MASTER.broker_name, raw)


def test_when_brokers_were_last_seen() -> None:
    table: RouteTable[Peer] = RouteTable()
    register(table, MASTER, now=1.0)
    register(table, REPLICA, now=2.5)
    assert sorted(table.last_seen()) == [
        (["a"], MASTER.broker_addr, 1.0),
        (["a"], REPLICA.broker_addr, 2.5),
    ]
    assert table.topic_count == 1
    table.unregister(MASTER)
    assert [address for _, address, _ in table.last_seen()] == [REPLICA.broker_addr]
