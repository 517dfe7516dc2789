from __future__ import annotations

import time

import pytest

from pyromq.broker.state.connections import CLIENT_EXPIRY, Client, ConsumerTable, ProducerTable
from pyromq.protocol.wire.bodies import ConsumerData, ConsumeType, MessageModel, SubscriptionData
from pyromq.protocol.wire.codes import LanguageCode
from tests.unit.broker.fakes import FakeConnection


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def consumers(clock: Clock) -> ConsumerTable:
    return ConsumerTable(clock)


@pytest.fixture
def producers(clock: Clock) -> ProducerTable:
    return ProducerTable(clock)


def client(connection: FakeConnection, client_id: str = "c1") -> Client:
    return Client(connection, client_id, LanguageCode.JAVA, 407)


def consumer(group: str = "g", *topics: str, version: int = 1) -> ConsumerData:
    subscriptions = [SubscriptionData(topic, sub_version=version) for topic in topics]
    return ConsumerData(group, subscription_data_set=subscriptions)


def ids(consumers: ConsumerTable, group: str = "g") -> list[str]:
    found = consumers.find(group)
    return [] if found is None else found.client_ids()


def test_members_join_once(consumers: ConsumerTable) -> None:
    one, two = FakeConnection(), FakeConnection()
    assert consumers.register(consumer("g", "t"), client(one))
    assert not consumers.register(consumer("g", "t"), client(one))
    assert consumers.register(consumer("g", "t"), client(two, "c2"))
    assert ids(consumers) == ["c1", "c2"]
    group = consumers.find("g")
    assert group is not None
    found = group.find_client("c2")
    assert found is not None
    assert found.connection is two
    assert group.find_client("absent") is None


def test_subscriptions_follow_the_heartbeats(consumers: ConsumerTable) -> None:
    one = client(FakeConnection())
    consumers.register(consumer("g", "t", "u"), one)
    assert consumers.register(consumer("g", "t", "v"), one)
    assert consumers.subscription("g", "u") is None
    assert consumers.subscription("g", "v") == SubscriptionData("v", sub_version=1)
    assert consumers.groups_of_topic("t") == {"g"}
    assert consumers.groups_of_topic("u") == set()
    assert consumers.subscription("absent", "t") is None


def test_only_a_newer_subscription_replaces_a_known_one(consumers: ConsumerTable) -> None:
    one = client(FakeConnection())
    consumers.register(consumer("g", "t", version=5), one)
    assert not consumers.register(consumer("g", "t", version=4), one)
    assert consumers.subscription("g", "t") == SubscriptionData("t", sub_version=5)
    assert not consumers.register(consumer("g", "t", version=6), one)
    assert consumers.subscription("g", "t") == SubscriptionData("t", sub_version=6)


def test_the_newest_heartbeat_sets_the_message_model(consumers: ConsumerTable) -> None:
    one = client(FakeConnection())
    consumers.register(consumer(), one)
    consumers.register(
        ConsumerData("g", ConsumeType.CONSUME_ACTIVELY, MessageModel.BROADCASTING), one
    )
    group = consumers.find("g")
    assert group is not None
    assert group.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert group.message_model is MessageModel.BROADCASTING


def test_the_last_member_removes_the_group(consumers: ConsumerTable) -> None:
    one, two = FakeConnection(), FakeConnection()
    consumers.register(consumer(), client(one))
    consumers.register(consumer(), client(two, "c2"))
    assert consumers.unregister("g", one)
    assert not consumers.unregister("g", one)
    assert ids(consumers) == ["c2"]
    assert consumers.unregister("g", two)
    assert consumers.find("g") is None
    assert len(consumers) == 0
    assert consumers._groups_of == {}
    assert not consumers.unregister("absent", one)


def test_a_lost_connection_leaves_all_its_groups(consumers: ConsumerTable) -> None:
    one, two = FakeConnection(), FakeConnection()
    consumers.register(consumer("g"), client(one))
    consumers.register(consumer("h"), client(one))
    consumers.register(consumer("h"), client(two, "c2"))
    assert consumers.disconnect(one) == ["g", "h"]
    assert consumers.disconnect(one) == []
    assert ids(consumers, "g") == []
    assert ids(consumers, "h") == ["c2"]


def test_silent_members_expire(consumers: ConsumerTable, clock: Clock) -> None:
    one, two = FakeConnection(), FakeConnection()
    consumers.register(consumer(), client(one))
    clock.now += CLIENT_EXPIRY
    consumers.register(consumer(), client(two, "c2"))
    assert consumers.expire() == []
    clock.now += 0.001
    assert consumers.expire() == ["g"]
    assert ids(consumers) == ["c2"]
    assert one.closed
    assert not two.closed
    clock.now += CLIENT_EXPIRY
    consumers.register(consumer(), client(two, "c2"))
    assert consumers.expire() == [], "a heartbeat keeps a member alive"


def test_changed_client_id_is_taken_over(consumers: ConsumerTable) -> None:
    one = FakeConnection()
    consumers.register(consumer(), client(one, "old"))
    assert not consumers.register(consumer(), client(one, "new"))
    assert ids(consumers) == ["new"]


def test_listeners_get_subscriptions_and_lost_groups(clock: Clock) -> None:
    heard: list[tuple[str, list[str]]] = []
    gone: list[str] = []
    consumers = ConsumerTable(
        clock,
        on_subscribed=lambda group, wanted: heard.append((group, [each.topic for each in wanted])),
        on_gone=gone.append,
    )
    one, two = FakeConnection(), FakeConnection()
    consumers.register(consumer("g", "t"), client(one))
    consumers.register(consumer("g", "t", "u"), client(two))
    consumers.register(consumer("h", "t"), client(two))
    assert heard == [("g", ["t"]), ("g", ["t", "u"]), ("h", ["t"])]
    consumers.unregister("g", one)
    assert gone == []
    consumers.disconnect(two)
    assert gone == ["g", "h"]
    consumers.register(consumer("g", "t"), client(one))
    clock.now += CLIENT_EXPIRY + 1
    consumers.expire()
    assert gone == ["g", "h", "g"]


def test_producers_are_picked_round_robin(producers: ProducerTable) -> None:
    connections = [FakeConnection() for _ in range(3)]
    for number, connection in enumerate(connections):
        producers.register("p", client(connection, f"c{number}"))
    connections[1].close()
    picked = [producers.pick("p") for _ in range(4)]
    assert picked[0] is picked[2]
    assert picked[1] is picked[3]
    assert {id(picked[0]), id(picked[1])} == {id(connections[0]), id(connections[2])}
    assert producers.pick("absent") is None
    for connection in connections:
        connection.close()
    assert producers.pick("p") is None


def test_producer_leaves(producers: ProducerTable) -> None:
    one = FakeConnection()
    producers.register("p", client(one))
    producers.register("q", client(one))
    assert producers.find_client("c1") is one
    producers.unregister("p", one)
    assert producers.groups() == ["q"]
    assert producers.find_client("c1") is one
    producers.unregister("absent", one)
    producers.disconnect(one)
    assert producers.groups() == []
    assert producers.find_client("c1") is None
    assert producers._groups_of == {}


def test_producer_that_reconnected_keeps_its_entry(producers: ProducerTable) -> None:
    old, new = FakeConnection(), FakeConnection()
    producers.register("p", client(old))
    producers.register("p", client(new))
    producers.disconnect(old)
    assert producers.find_client("c1") is new
    assert [member.connection for member in producers.members("p")] == [new]


def test_silent_producers_expire(producers: ProducerTable, clock: Clock) -> None:
    one, two = FakeConnection(), FakeConnection()
    producers.register("p", client(one))
    clock.now += CLIENT_EXPIRY + 1
    producers.register("p", client(two, "c2"))
    producers.expire()
    assert [member.client_id for member in producers.members("p")] == ["c2"]
    assert one.closed
    assert not two.closed


def test_client_ids_do_not_pile_up_on_one_connection(producers: ProducerTable) -> None:
    one = FakeConnection()
    for number in range(10):
        producers.register("p", client(one, f"p{number}"))
        producers.register("q", client(one, f"q{number}"))
    assert producers.find_client("p8") is None
    assert producers.find_client("p9") is one
    assert producers.find_client("q9") is one
    producers.disconnect(one)
    assert producers._by_client_id == {}


def test_the_end_of_a_connection_takes_linear_time(producers: ProducerTable) -> None:
    """Dropping eight times the client ids of a connection takes about eight times as long."""

    def seconds_to_leave(count: int) -> float:
        connection = FakeConnection()
        for number in range(count):
            producers.register(f"p{number}", client(connection, f"c{number}"))
        started = time.thread_time()
        producers.disconnect(connection)
        assert producers.groups() == []
        assert producers.find_client("c0") is None
        return time.thread_time() - started

    def best(count: int) -> float:
        return min(seconds_to_leave(count) for _ in range(3))

    assert best(4000) < 25 * best(500)


def test_a_client_id_is_kept_until_its_last_group_leaves(producers: ProducerTable) -> None:
    connection = FakeConnection()
    for group in ("p", "q"):
        producers.register(group, client(connection, "c1"))
    producers.register("p", client(connection, "c2"))
    assert producers.find_client("c1") is connection
    producers.unregister("q", connection)
    assert producers.find_client("c1") is None
    assert producers.find_client("c2") is connection
    producers.unregister("p", connection)
    assert producers.find_client("c2") is None
