"""What a request needs: which permission on which resource, or an administrator.

Two tables answer that:

- `compatible_needs` is RocketMQ's own list of ten codes and five administrative ones. Every other
  code needs a known key and a good signature, and nothing more.
- `Access` is the class of a request in strict mode. Each route of a server declares one; a server
  with an unclassified code does not start.

| class | strict mode needs |
| --- | --- |
| `ADMIN` | an account with `admin: true` |
| `PEER` | an account with `peer: true`, which servers use among themselves, or `admin: true` |
| `SIGNED` | a known key and a good signature |
| `SEND`, `REPLY` | PUB on the topic; for a `%RETRY%` or `%DLQ%` topic SUB on its own group |
| `PULL`, `CONSUMER_OFFSET` | SUB on topic and group |
| `QUERY_TOPIC` | SUB on the topic |
| `QUEUE` | PUB or SUB on the topic |
| `GROUP` | SUB on the group, if the request names one |
| `HEARTBEAT` | SUB on groups and topics; the others are left out (`allowed_heartbeat`) |
| `LOCKS`, `CLIENT_CONFIG` | SUB on the group and the topics in the body |
| `VIEW`, `SEND_BACK` | SUB on the topic of the message at the given offset |
| `END_TRANSACTION` | PUB on the topic of the half message at the given offset |

System topics, which hold the messages of everybody, are not covered by `defaultTopicPerm` in strict
mode: an entry must name them. Anybody with a good signature may send to the trace topic.

Pure. Raises ValueError for a body or a header that cannot be read, as the handlers would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from pyromq.acl.rules import Account, Permission, group_resource
from pyromq.protocol.names import (
    DEAD_LETTER_TOPIC_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    TOPICS_CLOSED_TO_SENDERS,
    TRACE_TOPIC,
)
from pyromq.protocol.wire.bodies import (
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
)
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

Fields: TypeAlias = Mapping[str, str]


class Need(NamedTuple):
    """A permission that a request needs on a resource."""

    resource: str
    permission: Permission


_PUB, _SUB, _ANY = Permission.PUB, Permission.SUB, Permission.ANY

#: Returns what a request needs, given its fields and its body.
Needs: TypeAlias = Callable[[Fields, bytes], Iterable[Need]]


class StoredMessage(NamedTuple):
    """A request about a stored message: the field with its physical offset, and the need."""

    offset_field: str
    permission: Permission


@dataclass(frozen=True, slots=True)
class Access:
    """The class of a request in strict mode."""

    name: str
    needs: Needs | None = None
    is_admin: bool = False
    #: Whether a peer is enough where an administrator is needed.
    for_peers: bool = False
    #: For requests whose topic is known only by the store.
    stored: StoredMessage | None = None
    #: The field with the time at which the client made the request, in milliseconds.
    time_field: str | None = None

    def admits(self, account: Account) -> bool:
        """Return whether an account may use an administrative request of this class."""
        return not self.is_admin or account.is_admin or self.is_routine_of(account)

    def is_routine_of(self, account: Account | None) -> bool:
        """Return whether this is what a server does all the time, and nobody wants to read of."""
        return self.for_peers and account is not None and account.is_peer


# RocketMQ's table


#: The codes that need an administrator in RocketMQ.
COMPATIBLE_ADMIN: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    }
)


def compatible_needs(code: int, fields: Fields, body: bytes) -> Iterable[Need]:
    """Return what RocketMQ checks for a request."""
    needs = _COMPATIBLE.get(code)
    return () if needs is None else needs(fields, body)


def _compatible_send(topic_field: str, group_field: str) -> Needs:
    def needs(fields: Fields, _: bytes) -> Iterable[Need]:
        topic = fields.get(topic_field)
        if topic is not None and topic.startswith(RETRY_TOPIC_PREFIX):
            return _groups(fields.get(group_field))
        return _topics(topic, _PUB)

    return needs


def _send_back(fields: Fields, _: bytes) -> Iterable[Need]:
    return _groups(fields.get("group"))


def _pull(fields: Fields, _: bytes) -> Iterable[Need]:
    return [*_topics(fields.get("topic"), _SUB), *_groups(fields.get("consumerGroup"))]


def _query(fields: Fields, _: bytes) -> Iterable[Need]:
    return _topics(fields.get("topic"), _SUB)


def _heartbeat(_: Fields, body: bytes) -> Iterable[Need]:
    needs: list[Need] = []
    for consumer in HeartbeatData.decode(body).consumer_data_set:
        needs += _groups(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            needs += _topics(subscription.topic, _SUB)
    return needs


def _unregister(fields: Fields, _: bytes) -> Iterable[Need]:
    return _groups(UnregisterClientRequestHeader.decode(dict(fields)).consumer_group)


def _consumer_list(fields: Fields, _: bytes) -> Iterable[Need]:
    return _groups(GetConsumerListByGroupRequestHeader.decode(dict(fields)).consumer_group)


def _update_offset(fields: Fields, _: bytes) -> Iterable[Need]:
    header = UpdateConsumerOffsetRequestHeader.decode(dict(fields))
    return [*_groups(header.consumer_group), *_topics(header.topic, _SUB)]


def _topics(topic: str | None, permission: Permission) -> list[Need]:
    return [] if topic is None else [Need(topic, permission)]


def _groups(group: str | None) -> list[Need]:
    return [] if group is None else [Need(group_resource(group), _SUB)]


_COMPATIBLE: Final[dict[int, Needs]] = {
    RequestCode.SEND_MESSAGE: _compatible_send("topic", "group"),
    RequestCode.SEND_MESSAGE_V2: _compatible_send("b", "a"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _pull,
    # Unknown to 4.9; 5.x checks it like a pull.
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: _query,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _consumer_list,
    RequestCode.UPDATE_CONSUMER_OFFSET: _update_offset,
}


# Classes of strict mode


def send(topic_field: str, time_field: str) -> Access:
    """Return the class of a send with these fields."""

    def needs(fields: Fields, _: bytes) -> Iterable[Need]:
        return _strict_topics(fields.get(topic_field), _PUB)

    return Access("send", needs, time_field=time_field)


def stored(offset_field: str, permission: Permission, needs: Needs | None = None) -> Access:
    """Return the class of a request about the message at a physical offset."""
    return Access("stored message", needs, stored=StoredMessage(offset_field, permission))


def _strict_pull(fields: Fields, _: bytes) -> Iterable[Need]:
    return [*_strict_topics(fields.get("topic"), _SUB), *_groups(fields.get("consumerGroup"))]


def _strict_query(fields: Fields, _: bytes) -> Iterable[Need]:
    return _strict_topics(fields.get("topic"), _SUB)


def _strict_queue(fields: Fields, _: bytes) -> Iterable[Need]:
    return _strict_topics(fields.get("topic"), _ANY)


def _strict_group(fields: Fields, _: bytes) -> Iterable[Need]:
    return _groups(fields.get("consumerGroup"))


def _strict_heartbeat(_: Fields, __: bytes) -> Iterable[Need]:
    return ()  # `allowed_heartbeat`


def _strict_locks(_: Fields, body: bytes) -> Iterable[Need]:
    request = LockBatchRequestBody.decode(body)
    needs = _groups(request.consumer_group)
    for topic in {queue.topic for queue in request.mq_set}:
        needs += _strict_topics(topic, _SUB)
    return needs


def _strict_client_config(_: Fields, body: bytes) -> Iterable[Need]:
    request = CheckClientRequestBody.decode(body)
    subscription = request.subscription_data
    topic = None if subscription is None else subscription.topic
    return [*_groups(request.group), *_strict_topics(topic, _SUB)]


def _strict_topics(topic: str | None, permission: Permission) -> list[Need]:
    return [] if topic is None else [strict_need(topic, permission)]


def strict_need(topic: str, permission: Permission) -> Need:
    """Return what the use of a topic needs: a topic of a group needs SUB on that group."""
    for prefix in (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX):
        if topic.startswith(prefix):
            return Need(group_resource(topic.removeprefix(prefix)), _SUB)
    return Need(topic, permission)


ADMIN: Final = Access("admin", is_admin=True)
PEER: Final = Access("peer", is_admin=True, for_peers=True)
SIGNED: Final = Access("signed")
SEND: Final = send("topic", "bornTimestamp")
SEND_V2: Final = send("b", "g")
REPLY: Final = replace(SEND, name="reply")
REPLY_V2: Final = replace(SEND_V2, name="reply")
PULL: Final = Access("pull", _strict_pull)
CONSUMER_OFFSET: Final = Access("consumer offset", _strict_pull)
QUERY_TOPIC: Final = Access("query", _strict_query)
QUEUE: Final = Access("queue", _strict_queue)
GROUP: Final = Access("group", _strict_group)
HEARTBEAT: Final = Access("heartbeat", _strict_heartbeat)
LOCKS: Final = Access("locks", _strict_locks)
CLIENT_CONFIG: Final = Access("client configuration", _strict_client_config)
VIEW: Final = stored("offset", _SUB)
SEND_BACK: Final = stored("offset", _SUB, _send_back)
END_TRANSACTION: Final = stored("commitLogOffset", _PUB)


def strictly_allows(account: Account, need: Need) -> bool:
    """Return whether an account may use a resource in strict mode."""
    if _is_internal(need) and not account.is_unrestricted:
        return need.resource in account.resources and account.allows(*need)
    return account.allows(*need)


def _is_internal(need: Need) -> bool:
    """Return whether a topic holds data of everybody, so that no default may cover it."""
    topic = need.resource
    return (
        topic in TOPICS_CLOSED_TO_SENDERS
        or topic.startswith(SYSTEM_TOPIC_PREFIX)
        or (
            need.permission is not _PUB
            and (topic == TRACE_TOPIC or topic.endswith(REPLY_TOPIC_SUFFIX))
        )
    )


class Heartbeat(NamedTuple):
    """A heartbeat without what its sender may not use."""

    body: bytes
    #: What was left out.
    refused: list[Need]
    #: Whether a group is left that the sender may use, or it named none.
    is_useful: bool


def allowed_heartbeat(account: Account, body: bytes) -> Heartbeat:
    """Leave out groups and topics of a heartbeat that an account may not use."""
    heartbeat = HeartbeatData.decode(body)
    refused: list[Need] = []

    def is_allowed(need: Need) -> bool:
        if strictly_allows(account, need):
            return True
        refused.append(need)
        return False

    consumers = []
    for consumer in heartbeat.consumer_data_set:
        if not all(map(is_allowed, _groups(consumer.group_name))):
            continue
        consumer.subscription_data_set = [
            each
            for each in consumer.subscription_data_set
            if is_allowed(strict_need(each.topic, _SUB))
        ]
        consumers.append(consumer)
    if not refused:
        return Heartbeat(body, refused, is_useful=True)
    is_useful = bool(consumers or heartbeat.producer_data_set)
    heartbeat.consumer_data_set = consumers
    return Heartbeat(heartbeat.encode(), refused, is_useful)
