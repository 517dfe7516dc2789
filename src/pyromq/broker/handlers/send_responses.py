"""Responses to sends, and the targets that hold ready-made ones for the hot path.

Successful responses differ only in message ids, queue id, queue offset and opaque. The bytes
between them, the pieces, come from an encoded response (`json_pieces`, `binary_pieces`), so that
both paths send the same bytes. Joined with `%` holes they are the templates of the hot path. A
`SendTarget` keeps a queue and its template until the topic or the settings change.

Used by `handlers.send` (templates), `handlers.send_slow` (everything) and the server
(`answers_after_wait`). On the loop.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from pyromq.base.memo import Memo
from pyromq.broker.inner_messages import GROUP_BUSY, NOT_AGREED
from pyromq.broker.parts import BrokerParts
from pyromq.broker.services.flow_control import REJECT_REQUEST
from pyromq.protocol import names
from pyromq.protocol.message.properties import MAX_PROPERTIES, MSG_REGION, TRACE_ON
from pyromq.protocol.wire import header_binary, header_json
from pyromq.protocol.wire.bodies import TopicConfig, TopicFilterType
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import (
    PREFIX_SIZE,
    Encoding,
    RemotingCommand,
    RequestError,
    frame_prefix,
    with_code,
)
from pyromq.protocol.wire.header_binary import pack_int
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import PutError, PutStatus

#: Values of the response that is cut into pieces: private-use characters, found in no setting.
_IDS_HOLE: Final = "\ue000ids"
_QUEUE_ID_HOLE: Final = "\ue000queueId"
_OFFSET_HOLE: Final = "\ue000queueOffset"
_HOLES: Final = (_IDS_HOLE, _QUEUE_ID_HOLE, _OFFSET_HOLE)


class ResponsePieces(NamedTuple):
    """The bytes of a JSON header around its values, all of them text.

    Message ids are joined by commas. Each is the store host (`SendResponses.id_prefix`) and the
    physical offset in 16 digits, both in upper-case hex; the other values are decimal.
    """

    before_id: bytes
    before_queue_id: bytes
    before_offset: bytes
    before_opaque: bytes
    end: bytes


class BinaryResponsePieces(NamedTuple):
    """The bytes of a binary header around its values.

    Opaque and the length of all fields are i32. Ids, queue id and offset are the same text as in
    JSON, each after its length as an i32. The fields begin with `before_id`.
    """

    before_opaque: bytes
    before_fields_length: bytes
    before_id: bytes
    before_queue_id: bytes
    before_offset: bytes
    end: bytes


class SendResponses:
    """Builds the responses of one broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store_config = parts.store.config
        #: Store host in hex, the first half of every message id.
        self.id_prefix = parts.store_host.hex().upper().encode()
        self._id_size = len(self.id_prefix + b"%016X" % 0)
        #: JSON headers by queue id and number of messages, to fill in with `%`: physical offset
        #: of each message, queue offset, opaque.
        self.json_templates: Memo[tuple[int, int], bytes] = Memo(self._json_template)
        #: Whole frames with a binary header by queue id, number of messages and number of digits
        #: of the queue offset: opaque (`pack_int`), physical offsets, queue offset as text.
        self.binary_templates: Memo[tuple[int, int, int], bytes] = Memo(self._binary_template)

    def sent(
        self, request: RemotingCommand, queue_id: int, offset: int, physicals: list[int]
    ) -> RemotingCommand:
        """Return the response to stored messages."""
        prefix = self.id_prefix.decode()
        ids = ",".join([f"{prefix}{physical:016X}" for physical in physicals])
        return self._sent(request, ids, str(queue_id), str(offset))

    def _sent(
        self, request: RemotingCommand, ids: str, queue_id: str, offset: str
    ) -> RemotingCommand:
        return request.answer(
            ext_fields={
                "msgId": ids,
                "queueId": queue_id,
                "queueOffset": offset,
                **self._fields(),
            }
        )

    def refusal(self, request: RemotingCommand, error: PutError | RequestError) -> RemotingCommand:
        """Return the response to a refused send."""
        refused = self._store_refusal(error) if isinstance(error, PutError) else error
        return request.answer(refused.code, refused.remark, self._fields())

    def clear(self) -> None:
        """Drop all templates: the settings changed."""
        self.json_templates.clear()
        self.binary_templates.clear()

    def json_pieces(self) -> ResponsePieces:
        """Return the pieces of a response with a JSON header."""
        return ResponsePieces(*header_json.pieces(self._sample_header(Encoding.JSON), _HOLES))

    def binary_pieces(self) -> BinaryResponsePieces:
        """Return the pieces of a response with a binary header."""
        header = self._sample_header(Encoding.ROCKETMQ)
        return BinaryResponsePieces(*header_binary.pieces(header, _HOLES))

    def _sample_header(self, encoding: Encoding) -> bytes:
        request = RemotingCommand(0, encoding=encoding)
        return self._sent(request, *_HOLES).encode()[PREFIX_SIZE:]

    def _json_template(self, key: tuple[int, int]) -> bytes:
        queue_id, count = key
        pieces = ResponsePieces(*map(_escaped, self.json_pieces()))
        return b"".join(
            (
                pieces.before_id,
                self._ids_form(count),
                pieces.before_queue_id,
                b"%d" % queue_id,
                pieces.before_offset,
                b"%d",
                pieces.before_opaque,
                b"%d",
                pieces.end,
            )
        )

    def _binary_template(self, key: tuple[int, int, int]) -> bytes:
        queue_id, count, offset_digits = key
        pieces = self.binary_pieces()
        queue_id_text = b"%d" % queue_id
        fields = (
            (pieces.before_id, self._ids_form(count), count * (self._id_size + 1) - 1),
            (pieces.before_queue_id, queue_id_text, len(queue_id_text)),
            (pieces.before_offset, b"%b", offset_digits),
        )
        fields_length = len(pieces.end) + sum(
            len(piece + pack_int(length)) + length for piece, _, length in fields
        )
        start, before_length = pieces.before_opaque, pieces.before_fields_length
        header_length = len(start) + len(before_length) + 2 * len(pack_int(0)) + fields_length
        return b"".join(
            (
                _escaped(frame_prefix(Encoding.ROCKETMQ, header_length, 0) + start),
                b"%b",
                _escaped(before_length + pack_int(fields_length)),
                *(_escaped(piece + pack_int(length)) + form for piece, form, length in fields),
                _escaped(pieces.end),
            )
        )

    def _ids_form(self, count: int) -> bytes:
        return b",".join([self.id_prefix + b"%016X"] * count)

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
        if status is PutStatus.OS_PAGECACHE_BUSY:
            return RequestError(ResponseCode.SYSTEM_ERROR, f"{GROUP_BUSY} ({error.reason})")
        return RequestError(ResponseCode.SYSTEM_ERROR, f"{status.name}: {error.reason}")


class SendTarget(NamedTuple):
    """A queue that takes plain messages, and the JSON template of its responses to one message."""

    queue: ConsumeQueue
    template: bytes


class TargetListener(Protocol):
    """Learns which queues are targets."""

    def add(self, queue: ConsumeQueue) -> None:
        """Note a new target."""

    def remove(self, queue: ConsumeQueue) -> None:
        """Note that a queue stopped being a target."""

    def clear(self) -> None:
        """Note that there are no targets, and that the settings changed."""


class SendTargets:
    """Targets of the hot path. A queue becomes one with its first accepted message."""

    def __init__(self, parts: BrokerParts, responses: SendResponses) -> None:
        self._responses = responses
        #: By topic and by the queue id as clients write it.
        self.by_topic: dict[str, dict[str, SendTarget]] = {}
        self.plain: TargetListener | None = None
        parts.tables.topics.add_listener(self._topic_changed)

    def add(self, topic: TopicConfig, queue: ConsumeQueue) -> None:
        """Let the next messages to a queue take the hot path, if its topic is a plain one."""
        if (
            topic.topic_name.startswith(names.RETRY_TOPIC_PREFIX)
            or topic.topic_filter_type is TopicFilterType.MULTI_TAG
        ):
            return
        self.by_topic.setdefault(topic.topic_name, {})[str(queue.queue_id)] = SendTarget(
            queue, self._responses.json_templates[queue.queue_id, 1]
        )
        if self.plain is not None:
            self.plain.add(queue)

    def clear(self) -> None:
        """Drop all targets: the settings changed."""
        self.by_topic.clear()
        self._responses.clear()
        if self.plain is not None:
            self.plain.clear()

    def _topic_changed(self, topic: str) -> None:
        for target in self.by_topic.pop(topic, {}).values():
            if self.plain is not None:
                self.plain.remove(target.queue)


def _escaped(piece: bytes) -> bytes:
    return piece.replace(b"%", b"%%")


def answers_after_wait(answers: bytes, outcome: AckOutcome) -> bytes:
    """Return the responses of a chunk that has waited for its fsync or for a replica.

    If that failed or took too long, successful sends get another code and keep their fields, as in
    RocketMQ: the messages are in the log, and clients do not send them again. If a raft group has
    not agreed on the messages, the sends have failed.
    """
    if outcome is AckOutcome.STORED:
        return answers
    failure = NOT_AGREED.get(outcome)
    if failure is not None:
        return with_code(answers, ResponseCode.SYSTEM_ERROR, b"msgId", failure)
    return with_code(answers, code_after_wait(outcome), b"msgId")


def code_after_wait(outcome: AckOutcome) -> ResponseCode:
    """Return the code of a send whose chunk has waited."""
    return _CODES_AFTER_WAIT[outcome]


_CODES_AFTER_WAIT: Final = {
    AckOutcome.STORED: ResponseCode.SUCCESS,
    AckOutcome.FLUSH_TIMED_OUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    AckOutcome.FLUSH_FAILED: ResponseCode.FLUSH_DISK_TIMEOUT,
    AckOutcome.REPLICA_TIMED_OUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    AckOutcome.NO_REPLICA: ResponseCode.SLAVE_NOT_AVAILABLE,
}
