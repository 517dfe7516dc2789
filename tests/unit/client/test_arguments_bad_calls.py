"""Every constructor and method of the clients, called with bad arguments.

The call itself raises IllegalMessageError or OptionError (both are ValueErrors) before anything is
sent. The error names the argument and its value; the tables hold the start of each error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from inspect import isawaitable
from math import nan
from typing import Any

import pytest

from pyromq import client
from pyromq.client import (
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    Batching,
    ClientError,
    IllegalMessageError,
    LitePullConsumer,
    Message,
    MessageQueue,
    OptionError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    Subscription,
    TransactionProducer,
    reply_to,
)
from tests.unit.client.received_messages import received

NOBODY = "127.0.0.1:1"
QUEUE = MessageQueue("t", "b", 0)


def handle(message: ReceivedMessage) -> None: ...


def handle_list(messages: list[ReceivedMessage]) -> None: ...


async def handle_nothing() -> None: ...


async def handle_two(message: object, other: object) -> None: ...


def push(**options: Any) -> PushConsumer:
    given = {"group": "g", "handler": handle, "subscriptions": {"t": "*"}, **options}
    return PushConsumer(NOBODY, **given)


def of_transactions(**options: Any) -> TransactionProducer:
    return TransactionProducer(NOBODY, **{"group": "g", "check": handle, **options})


#: What type checkers would refuse is asked for under names without types.
producer_of: Any = Producer
lite_of: Any = LitePullConsumer
pull_of: Any = PullConsumer
message_of: Any = Message

CONSTRUCTORS: list[tuple[Callable[[], object], str]] = [
    # Every client.
    (lambda: producer_of(5), "namesrv=5: expected host:port or a list of these, got int"),
    (lambda: producer_of(["a:1", None]), "namesrv=None: expected a str, got NoneType"),
    (
        lambda: producer_of(""),
        "namesrv='': expected host:port, separated by semicolons; '' names no address:",
    ),
    (
        lambda: producer_of("nonsense"),
        "namesrv='nonsense': expected host:port, separated by semicolons; 'nonsense' is not an",
    ),
    (
        lambda: producer_of(NOBODY, namespace="a b"),
        "namespace='a b': use only letters, digits, hyphens and underscores",
    ),
    (lambda: producer_of(NOBODY, namespace=5), "namespace=5: expected a str, got int"),
    (lambda: producer_of(NOBODY, instance_name=5), "instance_name=5: expected a str, got int"),
    (
        lambda: producer_of(NOBODY, access_key="a"),
        "access_key and secret_key must be given together",
    ),
    (
        lambda: producer_of(NOBODY, tls="yes"),
        "tls='yes': expected True, False, Tls or an ssl.SSLContext, got str",
    ),
    (lambda: producer_of(NOBODY, trace=5), "trace=5: expected True, False or a topic, got int"),
    (
        lambda: producer_of(NOBODY, trace="no topic"),
        "topic 'no topic' is not a legal name: use 1 to 127 letters, digits and %|_-",
    ),
    (lambda: producer_of(NOBODY, hooks=5), "hooks=5: expected a list of hooks, got int"),
    (
        lambda: producer_of(NOBODY, hooks=[5]),
        "5 is not a hook: it needs before_publish and after_publish, before_send and",
    ),
    (
        lambda: producer_of(NOBODY, request_timeout=0),
        "request_timeout=0: must be greater than 0 seconds",
    ),
    (
        lambda: producer_of(NOBODY, heartbeat_interval="30s"),
        "heartbeat_interval='30s': expected a number of seconds, got str",
    ),
    (
        lambda: producer_of(NOBODY, route_interval=nan),
        "route_interval=nan: must be a finite number of seconds",
    ),
    # Producers.
    (
        lambda: producer_of(NOBODY, group=""),
        "group '' is not a legal name: use 1 to 255 letters, digits and %|_-",
    ),
    (lambda: producer_of(NOBODY, group=None), "group=None: expected a name, got NoneType"),
    (
        lambda: producer_of(NOBODY, send_timeout=-1),
        "send_timeout=-1: must be greater than 0 seconds",
    ),
    (
        lambda: producer_of(NOBODY, send_timeout="3"),
        "send_timeout='3': expected a number of seconds, got str",
    ),
    (lambda: producer_of(NOBODY, retries=-1), "retries=-1: must be at least 0"),
    (lambda: producer_of(NOBODY, retries=1.5), "retries=1.5: expected a whole number, got float"),
    (
        lambda: producer_of(NOBODY, retry_unsafe="no"),
        "retry_unsafe='no': expected True or False, got str",
    ),
    (
        lambda: producer_of(NOBODY, batching=True),
        "batching=True: expected a Batching or None, got bool",
    ),
    (lambda: producer_of(NOBODY, compress_over=0), "compress_over=0: must be at least 1"),
    (lambda: producer_of(NOBODY, topic_queues=0), "topic_queues=0: must be at least 1"),
    (lambda: producer_of(NOBODY, max_in_flight=0), "max_in_flight=0: must be at least 1"),
    (lambda: producer_of(NOBODY, max_delay_level=0), "max_delay_level=0: must be at least 1"),
    (
        lambda: producer_of(NOBODY, avoid_slow_brokers=1),
        "avoid_slow_brokers=1: expected True or False, got int",
    ),
    (
        lambda: producer_of(NOBODY, send_timout=3),
        "unknown option send_timout: did you mean send_timeout? Options are access_key,",
    ),
    (lambda: Batching(linger=-1), "linger=-1: must be at least 0 seconds"),
    (lambda: Batching(max_messages=0), "max_messages=0: must be at least 1"),
    (lambda: Batching(max_bytes=1.5), "max_bytes=1.5: expected a whole number, got float"),  # type: ignore[arg-type]
    (lambda: of_transactions(check=None), "check=None: expected a function, got NoneType"),
    (lambda: of_transactions(max_checks=0), "max_checks=0: must be at least 1"),
    (lambda: of_transactions(topics="t"), "topics='t': expected a list of names, got str"),
    (lambda: of_transactions(topics=5), "topics=5: expected a list of names, got int"),
    (
        lambda: of_transactions(topics=["no topic"]),
        "topic 'no topic' is not a legal name: use 1 to 127 letters, digits and %|_-",
    ),
    # Consumers with a handler.
    (
        lambda: push(group="no group"),
        "group 'no group' is not a legal name: use 1 to 255 letters, digits and %|_-",
    ),
    (
        lambda: push(handler=None),
        "handler=None: expected a function or coroutine function, got NoneType",
    ),
    (
        lambda: push(handler=handle_nothing),
        "handler=handle_nothing: it must take one argument, a message or a list of messages: too",
    ),
    (
        lambda: push(handler=handle_two),
        "handler=handle_two: it must take one argument, a message or a list of messages: missing a",
    ),
    (
        lambda: push(handler=handle_list),
        "handler=handle_list: its argument 'messages' is a list, but it would get one message",
    ),
    (
        lambda: push(handler=handle, takes_lists=True),
        "handler=handle: its argument 'message' is one message, but it would get lists",
    ),
    (
        lambda: push(handler=handle, batch_size=5),
        "handler=handle: its argument 'message' is one message, but it would get lists",
    ),
    (
        lambda: push(subscriptions=5),
        "subscriptions=5: expected a topic, a list of topics or a mapping, got int",
    ),
    (lambda: push(subscriptions=[5]), "topic=5: expected a name, got int"),
    (
        lambda: push(subscriptions=["no topic"]),
        "topic 'no topic' is not a legal name: use 1 to 127 letters, digits and %|_-",
    ),
    (
        lambda: push(subscriptions={"t": 5}),
        "subscription=5: expected tags as `a || b` or a Subscription, got int",
    ),
    (lambda: push(subscriptions={"t": "||"}), "'||' names no tag: write `a || b`, or `*`"),
    (
        lambda: push(order="orderly"),
        "order='orderly': expected one of Order.CONCURRENT, Order.ORDERLY, got str",
    ),
    (
        lambda: push(model="BROADCASTING"),
        "model='BROADCASTING': expected one of MessageModel.BROADCASTING, MessageModel.CLUSTERING",
    ),
    (lambda: push(batch_size=-1), "batch_size=-1: must be at least 0"),
    (lambda: push(batch_size=2000), "batch_size=2000: must be at most 1024"),
    (lambda: push(takes_lists=1), "takes_lists=1: expected True or False, got int"),
    (
        lambda: push(takes_lists=False, batch_size=5),
        "takes_lists=False with batch_size=5: a handler without lists gets one message",
    ),
    (
        lambda: push(start_from="first"),
        "start_from='first': expected StartFrom.FIRST, StartFrom.LAST or a datetime",
    ),
    (lambda: push(max_handlers=0), "max_handlers=0: must be at least 1"),
    (lambda: push(max_reconsume_times=-2), "max_reconsume_times=-2: must be at least -1"),
    (lambda: push(consume_timeout=0), "consume_timeout=0: must be greater than 0 seconds"),
    (lambda: push(suspend="1s"), "suspend='1s': expected a number of seconds, got str"),
    (lambda: push(pull_interval=-1), "pull_interval=-1: must be at least 0 seconds"),
    (lambda: push(max_cached_bytes=0), "max_cached_bytes=0: must be at least 1"),
    (
        lambda: push(max_cached_messages_of_topic=0),
        "max_cached_messages_of_topic=0: must be at least 1",
    ),
    (lambda: push(allocate="averagely"), "allocate='averagely': expected a function, got str"),
    (lambda: push(unit_mode=None), "unit_mode=None: expected True or False, got NoneType"),
    (lambda: push(offsets_directory=5), "offsets_directory=5: expected a path, got int"),
    (
        lambda: push(max_handler=5),
        "unknown option max_handler: did you mean max_handlers? Options are access_key,",
    ),
    # Consumers that read.
    (lambda: lite_of(NOBODY, group=5), "group=5: expected a name, got int"),
    (lambda: lite_of(NOBODY, auto_commit=1), "auto_commit=1: expected True or False, got int"),
    (
        lambda: lite_of(NOBODY, commit_interval=0),
        "commit_interval=0: must be greater than 0 seconds",
    ),
    (
        lambda: lite_of(NOBODY, model="CLUSTERING"),
        "model='CLUSTERING': expected one of MessageModel.BROADCASTING, MessageModel.CLUSTERING",
    ),
    (lambda: lite_of(NOBODY, pull_batch_size=0), "pull_batch_size=0: must be at least 1"),
    (
        lambda: lite_of(NOBODY, start_from=0),
        "start_from=0: expected StartFrom.FIRST, StartFrom.LAST or a datetime",
    ),
    (
        lambda: lite_of(NOBODY, autocommit=False),
        "unknown option autocommit: did you mean auto_commit? Options are access_key, allocate,",
    ),
    (
        lambda: pull_of(
            NOBODY, "topic '' is not a legal name: use 1 to 127 letters, digits and %|_-"
        ),
        "",
    ),
    (lambda: pull_of(NOBODY, 5), "topic=5: expected a name, got int"),
    (
        lambda: pull_of(NOBODY, "t", group=""),
        "group '' is not a legal name: use 1 to 255 letters, digits and %|_-",
    ),
    (
        lambda: pull_of(NOBODY, "t", subscription=5),
        "subscription=5: expected tags as `a || b` or a Subscription, got int",
    ),
    (
        lambda: pull_of(NOBODY, "t", start_from="first"),
        "unknown option start_from: options are access_key, client_ip, heartbeat_interval,",
    ),
    # Values.
    (lambda: Retry(delay_level=-2), "delay_level=-2: must be at least -1"),
    (lambda: Retry(delay_level="3"), "delay_level='3': expected a whole number, got str"),  # type: ignore[arg-type]
    (lambda: Retry(suspend=-1), "suspend=-1: must be at least 0 seconds"),
    (lambda: Retry(messages="all"), "messages='all': expected a list of messages, got str"),  # type: ignore[arg-type]
    (lambda: Retry(messages=["one"]), "messages='one': expected a ReceivedMessage, got str"),  # type: ignore[list-item]
    (
        lambda: Subscription.tags(5),  # type: ignore[arg-type]
        "subscription=5: expected tags as `a || b` or a Subscription, got int",
    ),
    (lambda: Subscription.tags("| |"), "'| |' names no tag: write `a || b`, or `*`"),
    (lambda: Subscription.sql(" "), "an SQL92 expression must not be empty"),
    (lambda: Subscription.sql(None), "expression=None: expected a str, got NoneType"),  # type: ignore[arg-type]
    (lambda: Subscription("a", "SQL"), "kind='SQL': must be TAG or SQL92"),
    (lambda: Subscription(""), "expression='': expected a non-empty str"),
    (lambda: AllocateConsistentHash(virtual_nodes=0), "virtual_nodes=0: must be at least 1"),
    (lambda: AllocateByMachineRoom("room"), "rooms='room': expected a list of names, got str"),
    (lambda: AllocateByConfig(["t"]), "queue='t': expected a MessageQueue, got str"),  # type: ignore[list-item]
    (
        lambda: reply_to({"body": b"?"}, b"!"),  # type: ignore[arg-type]
        "message={'body': b'?'}: expected a ReceivedMessage, got dict",
    ),
    (
        lambda: reply_to(received(1), b"!"),
        "<message 7F00000100002A9F00000000000003E9 of t, b0:0:1, 4 bytes> is not a request and",
    ),
]

MESSAGES: list[tuple[Any, str]] = [
    (
        {"topic": "t", "body": b"x"},
        "message={'topic': 't', 'body': b'x'}: expected a Message, got dict: write",
    ),
    (None, "message=None: expected a Message, got NoneType: write Message(topic, body)"),
    (b"x", "message=b'x': expected a Message, got bytes: write Message(topic, body)"),
    (
        received(1),
        "message=<message 7F00000100002A9F00000000000003E9 of t, b0:0:1, 4 bytes>: expected a",
    ),
    (Message("", b"x"), "topic '' is not a legal name: use 1 to 127 letters, digits and %|_-"),
    (
        Message("no topic", b"x"),
        "topic 'no topic' is not a legal name: use 1 to 127 letters, digits and %|_-",
    ),
    (
        Message("x" * 128, b"x"),
        "topic",
    ),
    (message_of(5, b"x"), "topic=5: expected a name, got int"),
    (message_of(["t"], b"x"), "topic=['t']: expected a name, got list"),
    (message_of("t", "text"), "message for 't' has a body of type str: expected bytes"),
    (message_of("t", None), "message for 't' has a body of type NoneType: expected bytes"),
    (Message("t", b""), "message for 't' has an empty body"),
    (message_of("t", b"x", tags=5), "tags=5: expected a str, got int"),
    (message_of("t", b"x", tags=["a"]), "tags=['a']: expected a str, got list"),
    (
        Message("t", b"x", tags="a || b"),
        "tags='a || b': a message has one tag, and no subscription can match this one: it must",
    ),
    (
        Message("t", b"x", tags=" a"),
        "tags=' a': a message has one tag, and no subscription can match this one: it must not",
    ),
    (
        Message("t", b"x", tags="a|"),
        "tags='a|': a message has one tag, and no subscription can match this one: it must not",
    ),
    (
        Message("t", b"x", tags="*"),
        "tags='*': a message has one tag, and no subscription can match this one: it must not",
    ),
    (message_of("t", b"x", keys=5), "keys=5: expected a str or a list of str, got int"),
    (
        message_of("t", b"x", keys=b"k"),
        "keys=b'k': 107 is not a word without spaces",
    ),
    (
        message_of("t", b"x", keys=["k", 5]),
        "keys=['k', 5]: 5 is not a word without spaces",
    ),
    (
        Message("t", b"x", keys=["one key"]),
        "keys=['one key']: 'one key' is not a word without spaces",
    ),
    (
        Message("t", b"x", keys=["k", ""]),
        "keys=['k', '']: '' is not a word without spaces",
    ),
    (
        message_of("t", b"x", properties=[("a", "b")]),
        "properties=[('a', 'b')]: expected a dict of str, got list",
    ),
    (message_of("t", b"x", properties={"a": 5}), "property 'a'=5: names and values must be str"),
    (message_of("t", b"x", properties={5: "a"}), "property 5='a': names and values must be str"),
    (
        message_of("t", b"x", properties={"a": None}),
        "property 'a'=None: names and values must be str",
    ),
    (
        Message("t", b"x", properties={"a": ""}),
        "property 'a' has an empty value, which brokers and consumers treat as a missing",
    ),
    (
        Message("t", b"x", properties={"": "a"}),
        "property ''='a' cannot be sent: a name must not be empty, and neither name nor",
    ),
    (
        Message("t", b"x", properties={"a": "\x01"}),
        "property 'a'='\\x01' cannot be sent: a name must not be empty, and neither name",
    ),
    (
        Message("t", b"x", properties={"TRAN_MSG": "true"}),
        "property 'TRAN_MSG' is reserved: use TransactionProducer.send_in_transaction",
    ),
    (
        Message("t", b"x", properties={"DELAY": "3"}),
        "property 'DELAY' is reserved: use the message's field delay_level",
    ),
    (
        Message("t", b"x", properties={"TAGS": "a"}),
        "property 'TAGS' is reserved: use the message's field tags",
    ),
    (
        Message("t", b"x", properties={"UNIQ_KEY": "a"}),
        "property 'UNIQ_KEY' is reserved: each send makes its own",
    ),
    (
        message_of("t", b"x", flag="1"),
        "message for 't' has the flag '1': expected a 32-bit integer",
    ),
    (
        Message("t", b"x", flag=2**31),
        "message for 't' has the flag 2147483648: expected a 32-bit integer",
    ),
    (
        Message("t", b"x", delay_level=-1),
        "message for 't' has the delay_level -1: expected 1 to 18, or 0 for no delay; for",
    ),
    (
        Message("t", b"x", delay_level=99),
        "message for 't' has the delay_level 99: expected 1 to 18, or 0 for no delay; for",
    ),
    (
        message_of("t", b"x", delay_level="3"),
        "message for 't' has the delay_level '3': expected 1 to 18, or 0 for no delay; for",
    ),
    (
        message_of("t", b"x", delay_level=True),
        "message for 't' has the delay_level True: expected 1 to 18, or 0 for no delay; for",
    ),
    (message_of("t", b"x", ordering_key=5), "ordering_key=5: expected a str, got int"),
]

Calls = list[tuple[Callable[[Any], Awaitable[object] | object], str]]
GOOD = Message("t", b"x")

PRODUCER: Calls = [
    (lambda it: it.send(GOOD, "t"), "queue='t': expected a MessageQueue, got str"),
    (
        lambda it: it.send(GOOD, QUEUE, select=lambda queues, _: queues[0]),
        "queue and select are mutually exclusive: give one of them",
    ),
    (lambda it: it.send(GOOD, select=0), "select=0: expected a function, got int"),
    (lambda it: it.send(GOOD, timeout=0), "timeout=0: must be greater than 0 seconds"),
    (lambda it: it.send(GOOD, timeout=-1), "timeout=-1: must be greater than 0 seconds"),
    (lambda it: it.send(GOOD, timeout="3"), "timeout='3': expected a number of seconds, got str"),
    (
        lambda it: it.send_batch(GOOD),
        "messages=Message(topic='t', body=b'x', tags='', keys='', properties={}, flag=0,",
    ),
    (lambda it: it.send_batch(received(1)), "messages=<message "),
    (lambda it: it.send_batch([]), "messages=[]: a batch must have at least one message"),
    (
        lambda it: it.send_batch([GOOD, Message("u", b"x")]),
        "a batch must have one topic, this one has 2: ['t', 'u']",
    ),
    (
        lambda it: it.send_batch([GOOD, None]),
        "message=None: expected a Message, got NoneType: write Message(topic, body)",
    ),
    (
        lambda it: it.send_batch([GOOD, Message("t", b"x", delay_level=1)]),
        "a batch cannot hold a delayed message: send it alone",
    ),
    (
        lambda it: it.send_batch([GOOD], timeout=timedelta(seconds=1)),
        "timeout=datetime.timedelta(seconds=1): expected a number of seconds, got timedelta",
    ),
    (lambda it: it.send_oneway(GOOD, 0), "queue=0: expected a MessageQueue, got int"),
    (lambda it: it.request(GOOD, 0), "timeout=0: must be greater than 0 seconds"),
    (
        lambda it: it.request(GOOD, None),
        "timeout=None: expected a number of seconds, got NoneType",
    ),
    (
        lambda it: it.queues("no topic"),
        "topic 'no topic' is not a legal name: use 1 to 127 letters, digits and %|_-",
    ),
    (lambda it: it.queues(None), "topic=None: expected a name, got NoneType"),
    (
        lambda it: it.send_in_transaction(GOOD, None),
        "execute=None: expected a function, got NoneType",
    ),
    (
        lambda it: it.send_in_transaction(GOOD, handle, timeout=-1),
        "timeout=-1: must be greater than 0 seconds",
    ),
    (
        lambda it: it.send_in_transaction(Message("t", b"x", delay_level=1), handle),
        "a delayed message cannot be part of a transaction",
    ),
]
LITE: Calls = [
    (
        lambda it: it.subscribe(5),
        "subscriptions=5: expected a topic, a list of topics or a mapping, got int",
    ),
    (lambda it: it.subscribe([]), "subscriptions is empty: name at least one topic"),
    (lambda it: it.subscribe([["t"]]), "topic=['t']: expected a name, got list"),
    (
        lambda it: it.subscribe({"t": 5}),
        "subscription=5: expected tags as `a || b` or a Subscription, got int",
    ),
    (
        lambda it: it.subscribe("t", on_assigned="print"),
        "on_assigned='print': expected a function, got str",
    ),
    (lambda it: it.assign("t"), "queues='t': expected a list of MessageQueue, got str"),
    (
        lambda it: it.assign(QUEUE),
        "queues=MessageQueue(topic='t', broker_name='b', queue_id=0): expected a list of",
    ),
    (lambda it: it.assign(["t"]), "queue='t': expected a MessageQueue, got str"),
    (
        lambda it: it.assign([QUEUE], 5),
        "subscriptions=5: expected a topic, a list of topics or a mapping, got int",
    ),
    (lambda it: it.pause("t"), "queues='t': expected a list of MessageQueue, got str"),
    (lambda it: it.resume([0]), "queue=0: expected a MessageQueue, got int"),
    (lambda it: it.poll(-1), "timeout=-1: must be at least 0 seconds"),
    (lambda it: it.poll("5"), "timeout='5': expected a number of seconds, got str"),
    (lambda it: it.seek("t", 0), "queue='t': expected a MessageQueue, got str"),
    (lambda it: it.seek(QUEUE, -1), "offset=-1: must be at least 0"),
    (lambda it: it.seek(QUEUE, "first"), "offset='first': expected a whole number, got str"),
    (lambda it: it.seek_to_time(QUEUE, 0), "when=0: expected a datetime, got int"),
    (lambda it: it.commit(5), "offsets=5: expected a mapping from queues to offsets, got int"),
    (lambda it: it.commit({"t": 0}), "queue='t': expected a MessageQueue, got str"),
    (lambda it: it.commit({QUEUE: -1}), "offset=-1: must be at least 0"),
    (lambda it: it.committed("t"), "queue='t': expected a MessageQueue, got str"),
    (
        lambda it: it.queues(""),
        "topic '' is not a legal name: use 1 to 127 letters, digits and %|_-",
    ),
    (lambda it: it.min_offset(None), "queue=None: expected a MessageQueue, got NoneType"),
    (lambda it: it.max_offset(0), "queue=0: expected a MessageQueue, got int"),
    (lambda it: it.offset_by_time(QUEUE, "now"), "when='now': expected a datetime, got str"),
]
PULL: Calls = [
    (lambda it: it.pull("t", 0), "queue='t': expected a MessageQueue, got str"),
    (lambda it: it.pull(QUEUE, -1), "offset=-1: must be at least 0"),
    (lambda it: it.pull(QUEUE, "0"), "offset='0': expected a whole number, got str"),
    (lambda it: it.pull(QUEUE, 0, 0), "max_messages=0: must be at least 1"),
    (lambda it: it.pull(QUEUE, 0, wait=-1), "wait=-1: must be at least 0 seconds"),
    (lambda it: it.min_offset("t"), "queue='t': expected a MessageQueue, got str"),
    (lambda it: it.max_offset("t"), "queue='t': expected a MessageQueue, got str"),
    (lambda it: it.offset_by_time(QUEUE, 5), "when=5: expected a datetime, got int"),
    (lambda it: it.committed("t"), "queue='t': expected a MessageQueue, got str"),
    (lambda it: it.commit("t", 5), "queue='t': expected a MessageQueue, got str"),
    (lambda it: it.commit(QUEUE, -5), "offset=-5: must be at least 0"),
]


@pytest.mark.parametrize(("make", "text"), CONSTRUCTORS)
async def test_bad_constructor_arguments(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ClientError) as raised:
        make()
    assert isinstance(raised.value, IllegalMessageError | OptionError)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(("message", "text"), MESSAGES)
async def test_bad_messages(message: Any, text: str) -> None:
    """Whether they are sent alone, with `batching`, or oneway."""
    async with (
        of_transactions(retries=0) as producer,
        Producer(NOBODY, batching=Batching()) as batching,
    ):
        for send in (
            producer.send,
            producer.send_oneway,
            producer.request,
            batching.send,
            lambda it: producer.send_batch([it]),
            lambda it: producer.send_in_transaction(it, handle),  # type: ignore[arg-type]
        ):
            with pytest.raises(IllegalMessageError) as raised:
                await send(message)
            if message is not None and getattr(message, "delay_level", None):
                assert "delay" in str(raised.value)
            else:
                assert str(raised.value).startswith(text)
    with Producer.sync(NOBODY) as sync, pytest.raises(IllegalMessageError) as raised:
        sync.send(message)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(
    ("make", "call", "text"),
    [
        *((of_transactions, *each) for each in PRODUCER),
        *((lambda: lite_of(NOBODY, group="g"), *each) for each in LITE),
        *((lambda: pull_of(NOBODY, "t", group="g"), *each) for each in PULL),
    ],
)
async def test_bad_method_arguments(
    make: Callable[[], client.Client], call: Callable[[Any], Any], text: str
) -> None:
    async def called() -> None:
        result = call(it)
        if isawaitable(result):
            await result

    async with make() as it:
        with pytest.raises(ClientError) as raised:
            await called()
    assert isinstance(raised.value, IllegalMessageError | OptionError)
    assert str(raised.value).startswith(text)


async def test_unusual_arguments_that_work() -> None:
    push(subscriptions="t")
    push(subscriptions=["t", "u"])
    push(subscriptions={"t": ""})
    push(handler=handle_list, takes_lists=True)
    push(handler=handle_list, batch_size=5)
    push(handler=print)
    push(handler=lambda *messages: None)
    push(handler=[].append)
    Message("t", b"x", tags="a|b", keys="two keys", properties={" ": " "}).wire_properties("K")
    Message("t", memoryview(b"x"), delay_level=18).check()  # type: ignore[arg-type]
    Message("t", bytearray(b"x"), delay_level=19).check(max_delay_level=30)  # type: ignore[arg-type]
