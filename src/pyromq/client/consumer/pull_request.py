"""Build PULL_MESSAGE requests: as a command, or as a template for the fast path.

Both forms carry the same fields. The template formats five numbers and the opaque into a
prepared JSON header, which saves encoding the constant fields of a queue on every pull; it has
no room for a signature, so clients with an access key use the command. Called by `queue_access`
and by Spark's broker origin. Pure functions for any thread.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import PullMessageRequestHeader

#: The group that every broker provides for readers without one of their own.
ANONYMOUS_GROUP: Final = "TOOLS_CONSUMER"


class PullNumbers(NamedTuple):
    """The fields that change from pull to pull, in the order of the template."""

    offset: int
    max_messages: int
    sys_flag: int = PULL_SUBSCRIPTION
    commit_offset: int = 0
    suspend_ms: int = 0


def pull_command(
    group: str,
    topic: str,
    queue_id: int,
    subscription: Subscription,
    numbers: PullNumbers,
    *,
    version: int = 0,
    max_bytes: int | None = None,
) -> RemotingCommand:
    """Return a pull as a command.

    `max_bytes` asks a pyromq broker for that many bytes of records in one response; Java's
    broker ignores it.
    """
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=numbers.offset,
        max_msg_nums=numbers.max_messages,
        sys_flag=numbers.sys_flag,
        commit_offset=numbers.commit_offset,
        suspend_timeout_millis=numbers.suspend_ms,
        subscription=subscription.expression,
        sub_version=version,
        expression_type=subscription.kind,
        max_msg_bytes=max_bytes,
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.encode())


def pull_template(
    group: str, topic: str, queue_id: int, subscription: Subscription, version: int
) -> bytes:
    """Return a JSON header with `%d` for each of `PullNumbers` and for the opaque."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "subscription": subscription.expression,
        "subVersion": str(version),
        "expressionType": subscription.kind,
    }
    constant = orjson.dumps(fields)[:-1].replace(b"%", b"%%")
    return (
        b'{"code":%d,"extFields":' % RequestCode.PULL_MESSAGE
        + constant
        + b',"queueOffset":"%d","maxMsgNums":"%d","sysFlag":"%d","commitOffset":"%d",'
        b'"suspendTimeoutMillis":"%d"},"flag":0,"language":"'
        + LanguageCode.PYTHON.name.encode()
        + b'","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
        + str(PROTOCOL_VERSION).encode()
        + b"}"
    )
