"""The topics as JSON, joined from pieces that are kept from one time to the next.

A broker with ten thousand topics sends all of them to each NameServer and writes all of
them to `topics.json` after every change of one. To encode them anew takes tens of
milliseconds, during which threads compete with the loop for the interpreter; to join
kept pieces takes two.

A piece belongs to a `TopicConfig` object: those are never modified, only replaced, and
equal data versions mean equal tables (`state.topics`). Called by any thread.
"""

from __future__ import annotations

import threading
from typing import Final

import orjson

from pyromq.protocol.wire.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper

#: So many pieces of topics that are gone are kept at least.
_SPARE_PIECES: Final = 1000


class TopicJson:
    """Encodes the topics of one broker."""

    def __init__(self) -> None:
        self._pieces: dict[str, tuple[TopicConfig, bytes]] = {}
        self._lock = threading.Lock()
        self._last = b""
        self._last_version: DataVersion | None = None

    def table(self, topics: TopicConfigSerializeWrapper) -> bytes:
        """What `topics.encode()` gives."""
        # The file and the registration want the same at the same time: one of them waits.
        with self._lock:
            if topics.data_version != self._last_version:
                self._last = self._join(topics)
                self._last_version = topics.data_version
            return self._last

    def _join(self, topics: TopicConfigSerializeWrapper) -> bytes:
        pieces = self._pieces
        if len(pieces) > 2 * len(topics.topic_config_table) + _SPARE_PIECES:
            pieces = self._pieces = {}
        parts = []
        for name, topic in topics.topic_config_table.items():
            kept = pieces.get(name)
            if kept is None or kept[0] is not topic:
                kept = pieces[name] = topic, orjson.dumps(name) + b":" + topic.encode()
            parts.append(kept[1])
        return b'{"dataVersion":%b,"topicConfigTable":{%b}}' % (
            topics.data_version.encode(),
            b",".join(parts),
        )

    def registration(self, topics: TopicConfigSerializeWrapper) -> bytes:
        """What `RegisterBrokerBody(topics).encode()` gives."""
        return b'{"filterServerList":[],"topicConfigSerializeWrapper":%b}' % self.table(topics)
