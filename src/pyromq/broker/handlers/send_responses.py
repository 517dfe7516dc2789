"""Responses to sends, and the targets that hold ready-made ones for the hot path.

The header of a successful response differs from the last one of the same queue only in message id,
queue offset and opaque. A `SendTarget` keeps it as a `%` template, together with the queue, until
the topic or the settings change.

Used by `handlers.send` (templates), `handlers.send_slow` (everything) and the server
(`answers_after_flush`). On the loop.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from pyromq.broker.parts import BrokerParts
from pyromq.broker.services.flow_control import REJECT_REQUEST
from pyromq.protocol import names
from pyromq.protocol.message.properties import MAX_PROPERTIES, MSG_REGION, TRACE_ON
from pyromq.protocol.wire.bodies import TopicConfig, TopicFilterType
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_RESPONSE,
    RemotingCommand,
    RequestError,
    command_from,
    split_frames,
)
from pyromq.store.flush import FlushOutcome
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import PutError, PutStatus

#: Placeholders in a template: private-use characters, which no setting contains.
_ID_HOLE: Final = "\ue000id"
_OFFSET_HOLE: Final = "\ue000offset"
_OPAQUE_HOLE: Final = "\ue000opaque"
#: Follows the message id in a response.
ID_END: Final = b'","queueId"'


class SendResponses:
    """Builds the responses of one broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store_config = parts.store.config
        #: Store host in hex, the first half of every message id.
        self.id_prefix = parts.store_host.hex().upper().encode()

    def sent(
        self, request: RemotingCommand, queue_id: int, offset: int, physicals: list[int]
    ) -> RemotingCommand:
        """Return the response to stored messages."""
        prefix = self.id_prefix.decode()
        ids = ",".join([f"{prefix}{physical:016X}" for physical in physicals])
        return request.answer(
            ext_fields={
                "msgId": ids,
                "queueId": str(queue_id),
                "queueOffset": str(offset),
                **self._fields(),
            }
        )

    def refusal(self, request: RemotingCommand, error: PutError | RequestError) -> RemotingCommand:
        """Return the response to a refused send."""
        refused = self._store_refusal(error) if isinstance(error, PutError) else error
        return request.answer(refused.code, refused.remark, self._fields())

    def template(self, queue_id: int) -> bytes:
        """Return a JSON header to fill in with `%`: physical offset, queue offset, opaque."""
        header = {
            "code": 0,
            "extFields": {
                "msgId": _ID_HOLE,
                "queueId": str(queue_id),
                "queueOffset": _OFFSET_HOLE,
                **self._fields(),
            },
            "flag": FLAG_RESPONSE,
            "language": LanguageCode.PYTHON.name,
            "opaque": _OPAQUE_HOLE,
            "serializeTypeCurrentRPC": "JSON",
            "version": PROTOCOL_VERSION,
        }
        template = orjson.dumps(header).replace(b"%", b"%%")
        for hole, form in (
            (_ID_HOLE, self.id_prefix + b"%016X"),
            (_OFFSET_HOLE, b"%d"),
        ):
            template = template.replace(hole.encode(), form)
        return template.replace(b'"' + _OPAQUE_HOLE.encode() + b'"', b"%d")

    def _fields(self) -> dict[str, str]:
        return {
            MSG_REGION: self._config.region_id,
            TRACE_ON: "true" if self._config.trace_on else "false",
        }

    def _store_refusal(self, error: PutError) -> RequestError:
        status = error.status
        if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            return RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {self._store_config.max_message_size}B, "
                f"msg properties length limit {MAX_PROPERTIES}B: {error.reason}",
            )
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error.reason}"
            )
        if status is PutStatus.NO_BUFFER:
            return RequestError(ResponseCode.SYSTEM_BUSY, REJECT_REQUEST)
        if status is PutStatus.CREATE_MAPEDFILE_FAILED:
            return RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"create mapped file failed, server is busy or broken: {error.reason}",
            )
        return RequestError(ResponseCode.SYSTEM_ERROR, f"{status.name}: {error.reason}")


class SendTarget(NamedTuple):
    """A queue that takes plain messages, and the template of its responses."""

    queue: ConsumeQueue
    template: bytes


class SendTargets:
    """Targets of the hot path. A queue becomes one with its first accepted message."""

    def __init__(self, parts: BrokerParts, responses: SendResponses) -> None:
        self._responses = responses
        #: By topic and by the queue id as clients write it.
        self.by_topic: dict[str, dict[str, SendTarget]] = {}
        parts.tables.topics.add_listener(self._topic_changed)

    def add(self, topic: TopicConfig, queue: ConsumeQueue) -> None:
        """Let the next messages to a queue take the hot path, if its topic is a plain one."""
        if (
            topic.topic_name.startswith(names.RETRY_TOPIC_PREFIX)
            or topic.topic_filter_type is TopicFilterType.MULTI_TAG
        ):
            return
        self.by_topic.setdefault(topic.topic_name, {})[str(queue.queue_id)] = SendTarget(
            queue, self._responses.template(queue.queue_id)
        )

    def clear(self) -> None:
        """Drop all targets: the settings changed."""
        self.by_topic.clear()

    def _topic_changed(self, topic: str) -> None:
        self.by_topic.pop(topic, None)


def answers_after_flush(answers: bytes, outcome: FlushOutcome) -> bytes:
    """Return the responses of a chunk after its flush.

    If the flush failed or took too long, successful sends get the code FLUSH_DISK_TIMEOUT and keep
    their fields, as in RocketMQ: the messages are in the log, and most likely on disk soon.
    """
    if outcome is FlushOutcome.FLUSHED:
        return answers
    frames, _, _ = split_frames(answers)
    commands = [command_from(frame) for frame in frames]
    for command in commands:
        if command.code == ResponseCode.SUCCESS and "msgId" in command.ext_fields:
            command.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return b"".join(command.encode() for command in commands)
