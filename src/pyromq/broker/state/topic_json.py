"""JSON of all topics, joined from cached JSON of each.

After every change of one topic, a broker sends all topics to each NameServer and writes them to
`topics.json`. With ten thousand topics, encoding takes tens of milliseconds in which the thread
competes with the loop for the GIL; joining cached JSON takes two.

The cache is valid by identity: a `TopicConfig` is never modified, only replaced, and equal data
versions mean equal tables (`state.topics`). Any thread may call this.
"""

from __future__ import annotations

import threading
from typing import Final

import orjson

from pyromq.protocol.wire.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper

#: Entries of deleted topics that the cache may always keep.
_MAX_SPARE_ENTRIES: Final = 1000


class TopicJson:
    """Encodes the topics of one broker."""

    def __init__(self) -> None:
        self._cached: dict[str, tuple[TopicConfig, bytes]] = {}
        self._lock = threading.Lock()
        self._last = b""
        self._last_version: DataVersion | None = None

    def table(self, topics: TopicConfigSerializeWrapper) -> bytes:
        """Return the same as `topics.encode()`."""
        # File and registration need the same JSON at the same time: one waits for the other.
        with self._lock:
            if topics.data_version != self._last_version:
                self._last = self._join(topics)
                self._last_version = topics.data_version
            return self._last

    def _join(self, topics: TopicConfigSerializeWrapper) -> bytes:
        cached = self._cached
        if len(cached) > 2 * len(topics.topic_config_table) + _MAX_SPARE_ENTRIES:
            cached = self._cached = {}
        encoded = []
        for name, topic in topics.topic_config_table.items():
            entry = cached.get(name)
            if entry is None or entry[0] is not topic:
                entry = cached[name] = topic, orjson.dumps(name) + b":" + topic.encode()
            encoded.append(entry[1])
        return b'{"dataVersion":%b,"topicConfigTable":{%b}}' % (
            topics.data_version.encode(),
            b",".join(encoded),
        )

    def registration(self, topics: TopicConfigSerializeWrapper) -> bytes:
        """Return the same as `RegisterBrokerBody(topics).encode()`."""
        return b'{"filterServerList":[],"topicConfigSerializeWrapper":%b}' % self.table(topics)
