"""The broker's topics: which exist, how many queues they have, what clients may do.

The table begins with the system's own topics, then takes what `config/topics.json` says.
It grows when clients send to topics that do not exist yet (from the template TBW102),
when a group needs its retry topic, and by administrators.

Invariants:
1. A `TopicConfig` in the table is never modified, only replaced: readers may keep it
   until `on_change` names its topic.
2. Every change makes a new data version, calls the listeners once with the topic's name
   and is saved. Equal versions therefore mean equal tables.
3. Names created by clients are legal (see `protocol.names`): a topic is a folder of the
   store.
4. A topic is created only while there are fewer than `maxTopics` and a registration with all
   of them fits into a frame, even if it cannot be compressed: without a registration, clients
   would find none of them. The system's own topics, and those of the file, are exempt.

All methods are called on the event loop; none of them waits for the disk.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.base.clock import Clock, now_ms
from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.capacity import Capacity
from pyromq.broker.state.persistence import TableFile
from pyromq.broker.state.topic_json import TopicJson
from pyromq.protocol import names
from pyromq.protocol.message.sysflag import PERM_INHERIT, PERM_READ, PERM_WRITE
from pyromq.protocol.wire.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, RequestError

logger = logging.getLogger(__name__)

#: Flags of a topic: it belongs to a unit, or a group of a unit subscribes to it.
TOPIC_UNIT = 1
TOPIC_UNIT_SUBSCRIPTION = 2

_READ_WRITE = PERM_READ | PERM_WRITE
_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1024
#: Bytes of all topics in a registration that leave room for its other parts in a frame.
MAX_REGISTRATION_TOPICS: Final = MAX_FRAME - 64 * 1024

Listener = Callable[[str], None]


class TopicTable:
    """Topics by name; persisted as `topics.json`."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        *,
        on_change: Listener | None = None,
        now: Clock = now_ms,
    ) -> None:
        self._config = config
        self._now = now
        self._listeners: list[Listener] = [on_change] if on_change else []
        self._topics = {topic.topic_name: topic for topic in system_topics(config)}
        self._own_system_topics = frozenset(self._topics)
        self._capacity = Capacity("topics", "maxTopics", lambda: config.max_topics)
        self._size_capacity = Capacity(
            "bytes of topics to register", "size of a frame", lambda: MAX_REGISTRATION_TOPICS
        )
        #: Bytes of all topics in a registration, before it is compressed.
        self._size = sum(topic.line_size() for topic in self._topics.values())
        self.data_version = DataVersion(now(), 0)
        #: Encodes snapshots of the table, quicker than they would themselves.
        self.json = TopicJson()
        self.file = TableFile(
            directory / "topics.json", lambda: _FileContent(self.json, self.snapshot())
        )

    def load(self) -> None:
        """Take the topics of the file over the built-in ones. Raises PersistenceError."""
        loaded = self.file.load(TopicConfigSerializeWrapper.decode)
        if loaded is not None:
            self._topics.update(loaded.topic_config_table)
            self._size = sum(topic.line_size() for topic in self._topics.values())
            self._note_size()
            self.data_version = loaded.data_version

    def settings_changed(self) -> None:
        """Have the topics that every broker of this configuration has, as it is now."""
        needed = system_topics(self._config)
        self._own_system_topics |= {topic.topic_name for topic in needed}
        for topic in needed:
            if topic.topic_name not in self._topics:
                self._put(topic)

    def add_listener(self, on_change: Listener) -> None:
        """Call `on_change` with the topic's name after each change."""
        self._listeners.append(on_change)

    def get(self, topic: str) -> TopicConfig | None:
        """The topic's configuration, if it exists."""
        return self._topics.get(topic)

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> Collection[str]:
        """All topics' names."""
        return self._topics.keys()

    def is_system_topic(self, topic: str) -> bool:
        """Whether clients and administrators may not create or delete this topic."""
        return topic in self._own_system_topics or names.is_system_topic(topic)

    def system_topics(self) -> set[str]:
        """All topics that are not for applications."""
        return {*names.SYSTEM_TOPICS, *self._own_system_topics}

    def is_order_topic(self, topic: str) -> bool:
        """Whether the topic's messages are ordered over all brokers."""
        config = self._topics.get(topic)
        return config is not None and config.order

    def snapshot(self) -> TopicConfigSerializeWrapper:
        """The table as it is now, not shared with later changes."""
        return TopicConfigSerializeWrapper(dict(self._topics), self.data_version)

    def create_for_send(
        self,
        topic: str,
        template: str,
        queue_nums: int,
        *,
        sys_flag: int = 0,
        remote_address: str = "",
    ) -> TopicConfig | None:
        """The topic of a send, created if need be from the template that the client names.

        None when the topic does not exist and may not be created; RequestError when the table
        is full.
        """
        existing = self._topics.get(topic)
        if existing is not None:
            return existing
        fault = names.topic_fault(topic) or self._template_fault(template)
        if fault is not None:
            logger.warning("topic %r of %s is not created: %s", topic, remote_address, fault)
            return None
        pattern = self._topics[template]
        created = TopicConfig(
            topic_name=topic,
            # A topic without queues could never be sent to, whatever the client asked for.
            read_queue_nums=(queues := max(1, min(queue_nums, pattern.write_queue_nums))),
            write_queue_nums=queues,
            perm=pattern.perm & ~PERM_INHERIT,
            topic_filter_type=pattern.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        self._refuse_when_full(created)
        logger.info("topic %s created from %s for %s", topic, template, remote_address)
        self._put(created)
        return created

    def create_for_send_back(
        self, topic: str, queue_nums: int, perm: int = _READ_WRITE, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic that the broker itself needs, such as a group's retry topic.

        Raises RequestError when it does not exist and the table is full.
        """
        existing = self._topics.get(topic)
        if existing is not None:
            return existing
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=sys_flag,
        )
        self._refuse_when_full(created)
        logger.info("topic %s created by the broker", topic)
        self._put(created)
        return created

    def update(self, config: TopicConfig) -> None:
        """Create the topic, or replace its configuration. Raises RequestError when full."""
        self._refuse_when_full(config)
        verb = "updated" if config.topic_name in self._topics else "created"
        logger.info("topic %s %s: %s", config.topic_name, verb, config)
        self._put(config)

    def delete(self, topic: str) -> bool:
        """Remove a topic; False when it does not exist."""
        deleted = self._topics.pop(topic, None)
        if deleted is None:
            logger.warning("topic %r is not deleted: it does not exist", topic)
            return False
        self._size -= deleted.line_size()
        self._note_size()
        logger.info("topic %s deleted", topic)
        self._changed([topic])
        return True

    def set_order_topics(self, ordered: Collection[str]) -> None:
        """Make exactly these topics ordered, as the NameServer's order configuration says."""
        changed = [
            config
            for config in self._topics.values()
            if config.order != (config.topic_name in ordered)
        ]
        for config in changed:
            logger.info("topic %s: order is now %s", config.topic_name, not config.order)
            self._topics[config.topic_name] = dataclasses.replace(config, order=not config.order)
        if changed:
            self._changed([config.topic_name for config in changed])

    def set_sys_flag(self, topic: str, flag: int, *, present: bool) -> None:
        """Set or clear a flag (`TOPIC_UNIT`, `TOPIC_UNIT_SUBSCRIPTION`) of a topic that exists."""
        config = self._topics.get(topic)
        if config is None:
            return
        flags = config.topic_sys_flag | flag if present else config.topic_sys_flag & ~flag
        if flags != config.topic_sys_flag:
            self._put(dataclasses.replace(config, topic_sys_flag=flags))

    def new_version(self) -> None:
        """Let everybody read the table again, although no topic has changed."""
        self._changed(())

    def adopt(self, queue_counts: Mapping[str, int]) -> None:
        """Create the topics that the store has queues of and the table does not know.

        Such a topic was created in the instant before the process was killed, most likely by
        a send: its producers may know as many queues as such a topic gets.
        """
        for topic, found in queue_counts.items():
            # The ends of transactions are nobody else's: in RocketMQ, too, they have no topic.
            if topic not in self._topics and topic != names.TRANSACTION_OP_TOPIC:
                logger.warning("topic %s has messages but no configuration: created", topic)
                by_broker = topic[:1] == "%" or names.is_system_topic(topic)
                count = max(found, 0 if by_broker else self._config.default_topic_queue_nums)
                self._put(TopicConfig(topic, count, count))

    def _template_fault(self, template: str) -> str | None:
        pattern = self._topics.get(template)
        if pattern is None:
            return f"the template {template!r} does not exist"
        if template == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return "autoCreateTopicEnable is false"
        if not pattern.perm & PERM_INHERIT:
            return f"{template} is no template, its permission is {pattern.perm}"
        return None

    def _refuse_when_full(self, config: TopicConfig) -> None:
        name = config.topic_name
        if name in self._topics or self.is_system_topic(name):
            return
        fault = self._capacity.fault(len(self._topics)) or self._size_capacity.fault(
            self._size + config.line_size()
        )
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {name} is not created: {fault}")

    def _put(self, config: TopicConfig) -> None:
        before = self._topics.get(config.topic_name)
        self._size += config.line_size() - (before.line_size() if before is not None else 0)
        self._topics[config.topic_name] = config
        self._note_size()
        self._changed([config.topic_name])

    def _note_size(self) -> None:
        self._capacity.note(len(self._topics))
        self._size_capacity.note(self._size)

    def _changed(self, topics: Iterable[str]) -> None:
        self.data_version = self.data_version.next(self._now())
        for topic in topics:
            for listener in self._listeners:
                listener(topic)
        self.file.save_soon()


class _FileContent(NamedTuple):
    """The table at one instant, as the file has it."""

    json: TopicJson
    topics: TopicConfigSerializeWrapper

    def encode(self) -> bytes:
        return self.json.table(self.topics)


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that every broker of this configuration has."""

    def fixed(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    def template_perm(enabled: bool) -> int:
        return PERM_INHERIT | (_READ_WRITE if enabled else 0)

    topics = [
        fixed(names.SELF_TEST_TOPIC, 1),
        fixed(names.BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
        TopicConfig(config.broker_cluster_name, perm=template_perm(config.cluster_topic_enable)),
        fixed(config.broker_name, 1, template_perm(config.broker_topic_enable)),
        fixed(names.OFFSET_MOVED_TOPIC, 1),
        fixed(names.SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
        fixed(names.reply_topic(config.broker_cluster_name), 1),
    ]
    if config.auto_create_topic_enable:
        queues = config.default_topic_queue_nums
        topics.append(fixed(names.AUTO_CREATE_TOPIC, queues, template_perm(True)))
    if config.trace_topic_enable:
        topics.append(fixed(config.msg_trace_topic_name, 1))
    return topics
