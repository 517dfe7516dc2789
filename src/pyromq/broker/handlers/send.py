"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: the hot path.

Serves a run of raw frames. Everything that the messages to a queue have in common is looked up once
and kept as a `SendTarget`: that the topic exists and takes messages, the queue, the template of the
response. A plain message goes from its header's dictionary straight to the store's `put`, a delayed
one to the writer, and a batch to `put_batch`. All other frames go to the slow path
(`handlers.send_slow`).

Invariants
1. A frame is put at most once. The hot path hands a frame to the slow one only before its put.
2. Messages of one connection are put in the order in which they arrived. While a large batch of a
   connection is encoded, its other sends take the slow path and queue up.

On the loop.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from pyromq.acl import classification as access
from pyromq.base.memo import Memo
from pyromq.broker.handlers.plain_sends import PlainSends
from pyromq.broker.handlers.send_responses import SendResponses, SendTargets
from pyromq.broker.handlers.send_slow import MAX_BATCH_AT_ONCE, SlowSends
from pyromq.broker.inner_messages import InnerMessage, delay_level
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Body, FrameTaker, Pool, Route, Routes, SlowPath, fast
from pyromq.protocol import kernel
from pyromq.protocol.filter.tags import text_tags_codes
from pyromq.protocol.java.wire_types import INT64, parse_integer
from pyromq.protocol.message.properties import (
    CLUSTER,
    CLUSTER_START,
    DELAY_START,
    PROPERTY_SEPARATOR,
    TRAN_MSG_START,
    WAIT_START,
    WAIT_TRUE,
    decode_properties,
)
from pyromq.protocol.message.sysflag import HOST_MASK, TRANSACTION_MASK
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    RawFrame,
    RequestError,
    pack_prefix,
)
from pyromq.protocol.wire.header_binary import pack_int
from pyromq.protocol.wire.header_json import Header
from pyromq.protocol.wire.send_fields import LONG_NAMES, SHORT_NAMES, SendFields
from pyromq.remoting.connection import Connection
from pyromq.store.results import PutError

#: Bits of sysFlag that a plain message does not have.
_SPECIAL_FLAGS: Final = TRANSACTION_MASK | HOST_MASK
_INT_MIN: Final = -0x80000000
_INT_MAX: Final = 0x7FFFFFFF


class _UnusualError(Exception):
    """A message that is not plain."""


#: Errors before the put: the slow path reports them or copes with them.
_HOT_ERRORS: Final = (
    _UnusualError,
    PutError,
    RequestError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    struct.error,
)


_CODES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
#: The default WAIT property at the end of the properties, and between two others.
_LAST_WAIT: Final = PROPERTY_SEPARATOR + WAIT_TRUE
_INNER_WAIT: Final = _LAST_WAIT + PROPERTY_SEPARATOR


class SendHandlers:
    """Stores messages of producers."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store = parts.store
        self._writer = parts.writer
        self._responses = SendResponses(parts)
        self._send_targets = SendTargets(parts, self._responses)
        self._targets = self._send_targets.by_topic
        self.slow = SlowSends(parts, self._responses, self._send_targets)
        self._queued = self.slow.queued
        #: None without the compiled kernel.
        self._plain: PlainSends | None = None
        module = kernel.load("sends")
        if module is not None:
            batch_properties = self.slow.batch_properties
            self._plain = PlainSends(
                module, parts, self._responses, batch_properties, self._queued, MAX_BATCH_AT_ONCE
            )
            self._send_targets.plain = self._plain
        #: The checks of a send, which replies pass as well.
        self.check = self.slow.check
        self._cluster_property = f"{CLUSTER}\x01{self._config.broker_cluster_name}".encode()
        self._joined_cluster_property = b"\x02" + self._cluster_property
        self._prefixes: Memo[int, bytes] = Memo(lambda length: pack_prefix(4 + length, length))
        self._numbers: Memo[str, int] = Memo(lambda text: parse_integer(text, INT64))
        self._tags = text_tags_codes()

    def routes(self) -> Routes:
        """Return the routes of the family."""
        taker = None if self._plain is None else FrameTaker(_CODES, self._plain.take)
        return Routes(
            Route(
                RequestCode.SEND_MESSAGE,
                access.SEND,
                self.slow.send_one,
                hot=fast(partial(self._send_run, LONG_NAMES), taker),
                body=Body.MESSAGES,
                pool=Pool.SEND,
            ),
            Route(
                RequestCode.SEND_MESSAGE_V2,
                access.SEND_V2,
                self.slow.send_one,
                hot=fast(partial(self._send_run, SHORT_NAMES), taker),
                body=Body.MESSAGES,
                pool=Pool.SEND,
            ),
            Route(
                RequestCode.SEND_BATCH_MESSAGE,
                access.SEND_V2,
                self.slow.send_one,
                hot=fast(partial(self._batch_run, SHORT_NAMES), taker),
                body=Body.MESSAGES,
                pool=Pool.SEND,
            ),
        )

    def settings_changed(self) -> None:
        """Check every queue again, and answer by the new settings."""
        self._send_targets.clear()

    def _send_run(
        self,
        fields: SendFields,
        slow: SlowPath,
        connection: Connection,
        frames: list[RawFrame],
        answers: list[bytes],
    ) -> None:
        """Serve a run of SEND_MESSAGE or SEND_MESSAGE_V2, which differ in their field names."""
        if self._queued and connection in self._queued:
            for frame in frames:
                slow(connection, frame, answers)
            return
        put = self._store.put
        targets, numbers = self._targets, self._numbers
        find_tags = self._tags.find
        cluster, joined_cluster = self._cluster_property, self._joined_cluster_property
        prefixes, binary_templates = self._prefixes, self._responses.binary_templates
        born_host = connection.born_host
        topic, queue_id, sys_flag_name, born, flag, properties_name, reconsume, batch = fields
        following = iter(frames)
        for frame in following:
            encoding, header, body = frame
            try:
                ext = header["extFields"]
                queue, template = targets[ext[topic]][ext[queue_id]]
                sys_flag = numbers[ext[sys_flag_name]]
                text = ext[properties_name].replace(_INNER_WAIT, PROPERTY_SEPARATOR)
                # Without tags it is the last property.
                text = text.removesuffix(_LAST_WAIT)
                if (
                    sys_flag & _SPECIAL_FLAGS
                    or not _INT_MIN <= header["opaque"] <= _INT_MAX
                    or WAIT_START in text
                    or TRAN_MSG_START in text
                    or CLUSTER_START in text
                    or ext.get(batch, "false") != "false"
                ):
                    raise _UnusualError
                times = numbers[ext[reconsume]] if reconsume in ext else 0
                if DELAY_START in text:
                    message = InnerMessage(
                        ext[topic],
                        queue.queue_id,
                        body,
                        self._delayed_properties(ext[properties_name]),
                        numbers[ext[flag]],
                        sys_flag,
                        numbers[ext[born]],
                        born_host,
                        times,
                    )
                    _, offset, physical = self._writer.put(message)
                else:
                    offset = queue.next_offset
                    physical = put(
                        queue,
                        body,
                        text.encode(),
                        find_tags(text),
                        numbers[ext[flag]],
                        sys_flag,
                        numbers[ext[born]],
                        born_host,
                        times,
                        joined_cluster if text and text[-1] != "\x02" else cluster,
                    )
            except _HOT_ERRORS:
                if _is_batch(header, batch):
                    self._batch_run(fields, slow, connection, [frame], answers)
                else:
                    slow(connection, frame, answers)
                if connection in self._queued:
                    for later in following:
                        slow(connection, later, answers)
                continue
            if header.get("flag", 0) & FLAG_ONEWAY:
                continue
            if encoding:
                digits = b"%d" % offset
                binary_template = binary_templates[queue.queue_id, 1, len(digits)]
                answers.append(binary_template % (pack_int(header["opaque"]), physical, digits))
                continue
            answer_header = template % (physical, offset, header["opaque"])
            answers.append(prefixes[len(answer_header)])
            answers.append(answer_header)

    def _delayed_properties(self, text: str) -> dict[str, str]:
        """Return the properties to store. Raises ValueError if the message is not delayed."""
        properties = decode_properties(text)
        if delay_level(properties) <= 0:
            raise ValueError("DELAY is not positive")
        properties[CLUSTER] = self._config.broker_cluster_name
        return properties

    def _batch_run(
        self,
        fields: SendFields,
        slow: SlowPath,
        connection: Connection,
        frames: list[RawFrame],
        answers: list[bytes],
    ) -> None:
        """Serve a run of batches: each frame holds many messages for one queue."""
        numbers, responses = self._numbers, self._responses
        topic, queue_id, sys_flag_name, born, _, properties_name, reconsume, batch = fields
        for frame in frames:
            encoding, header, body = frame
            try:
                ext = header["extFields"]
                queue, _ = self._targets[ext[topic]][ext[queue_id]]
                sys_flag = numbers[ext[sys_flag_name]]
                if (
                    sys_flag & _SPECIAL_FLAGS
                    or not _INT_MIN <= header["opaque"] <= _INT_MAX
                    or ext[batch] != "true"
                    or connection in self._queued
                ):
                    raise _UnusualError
                offset = queue.next_offset
                physicals = self._store.put_batch(
                    queue,
                    body,
                    self.slow.batch_properties[ext[properties_name]],
                    sys_flag,
                    numbers[ext[born]],
                    connection.born_host,
                    numbers[ext[reconsume]] if reconsume in ext else 0,
                    MAX_BATCH_AT_ONCE,
                )
            except _HOT_ERRORS:
                slow(connection, frame, answers)
                continue
            if header.get("flag", 0) & FLAG_ONEWAY:
                continue
            count = len(physicals)
            if encoding:
                digits = b"%d" % offset
                template = responses.binary_templates[queue.queue_id, count, len(digits)]
                answers.append(template % (pack_int(header["opaque"]), *physicals, digits))
                continue
            template = responses.json_templates[queue.queue_id, count]
            answer_header = template % (*physicals, offset, header["opaque"])
            answers.append(self._prefixes[len(answer_header)])
            answers.append(answer_header)


def _is_batch(header: Header, name: str) -> bool:
    """Return whether a request of single messages holds a batch."""
    ext = header.get("extFields")
    return type(ext) is dict and ext.get(name) == "true"
