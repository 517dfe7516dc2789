"""Topics: which exist, their queues and permissions.

The table starts with the system's own topics and those of `config/topics.json`. Topics are added
when clients send to new ones (from the template TBW102), when a group needs its retry topic, and by
administrators. A replica takes over its master's table (`take_over`).

Invariants
1. A `TopicConfig` in the table is never modified, only replaced: readers may keep it until a
   listener is called with its topic.
2. Every change makes a new data version, calls the listeners with the topic's name and is saved. So
   equal versions mean equal tables.
3. Names created by clients are legal (`protocol.names`): a topic is a directory of the store.
4. A topic is created only while there are fewer than `maxTopics` and a registration with all of
   them, even uncompressed, fits into a frame: without a registration, clients would find none of
   them. The system's own topics and those of the file are exempt. A master's table that exceeds
   these limits is refused as a whole.

Called on the loop; nothing here waits for the disk.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.base.clock import Clock, now_ms
from pyromq.base.sizes import KIB
from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.capacity import Capacity
from pyromq.broker.state.copied_tables import CopyError
from pyromq.broker.state.persistence import TableFile
from pyromq.broker.state.topic_json import TopicJson
from pyromq.protocol import names
from pyromq.protocol.message.sysflag import PERM_INHERIT, PERM_READ, PERM_WRITE
from pyromq.protocol.wire.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, RequestError

logger = logging.getLogger(__name__)

#: Flags of a topic that belongs to a unit, or to which a group of a unit subscribes.
TOPIC_UNIT = 1
TOPIC_UNIT_SUBSCRIPTION = 2

_READ_WRITE = PERM_READ | PERM_WRITE
_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1024
#: Bytes of all topics in a registration; leaves room in the frame for the rest.
MAX_REGISTRATION_TOPICS: Final = MAX_FRAME - 64 * KIB

Listener = Callable[[str], None]
#: Called with a topic that a send has created.
CreationListener = Callable[[TopicConfig], None]


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
        self._creation_listeners: list[CreationListener] = []
        self._topics = {topic.topic_name: topic for topic in system_topics(config)}
        self._own_system_topics = frozenset(self._topics)
        self._capacity = Capacity("topics", "maxTopics", lambda: config.max_topics)
        self._size_capacity = Capacity(
            "bytes of topics to register", "size of a frame", lambda: MAX_REGISTRATION_TOPICS
        )
        #: Bytes of all topics in a registration, uncompressed.
        self._size = sum(topic.line_size() for topic in self._topics.values())
        self.data_version = DataVersion(now(), 0)
        #: Encodes snapshots of the table from cached parts.
        self.json = TopicJson()
        self.file = TableFile(
            directory / "topics.json", lambda: _FileContent(self.json, self.snapshot())
        )

    def load(self) -> None:
        """Load the file; its topics replace built-in ones. Raises PersistenceError."""
        loaded = self.file.load(TopicConfigSerializeWrapper.decode)
        if loaded is not None:
            self._topics.update(loaded.topic_config_table)
            self._size = sum(topic.line_size() for topic in self._topics.values())
            self._note_size()
            self.data_version = loaded.data_version

    def settings_changed(self) -> None:
        """Create the system topics that the current settings require."""
        needed = system_topics(self._config)
        self._own_system_topics |= {topic.topic_name for topic in needed}
        for topic in needed:
            if topic.topic_name not in self._topics:
                self._put(topic)

    def add_listener(self, on_change: Listener) -> None:
        """Have `on_change` called with the topic's name after each change."""
        self._listeners.append(on_change)

    def add_creation_listener(self, on_created: CreationListener) -> None:
        """Have `on_created` called with every topic that a send creates."""
        self._creation_listeners.append(on_created)

    def get(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic, or None."""
        return self._topics.get(topic)

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> Collection[str]:
        """Return the names of all topics."""
        return self._topics.keys()

    def is_system_topic(self, topic: str) -> bool:
        """Return whether clients and administrators cannot create or delete a topic."""
        return topic in self._own_system_topics or names.is_system_topic(topic)

    def system_topics(self) -> set[str]:
        """Return the topics that applications cannot use."""
        return {*names.SYSTEM_TOPICS, *self._own_system_topics}

    def is_order_topic(self, topic: str) -> bool:
        """Return whether a topic is ordered across all brokers."""
        config = self._topics.get(topic)
        return config is not None and config.order

    def snapshot(self) -> TopicConfigSerializeWrapper:
        """Return a copy of the table."""
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
        """Return the topic of a send, created if missing from the template that the client names.

        Return None if it may not be created. Raises RequestError if the table is full.
        """
        existing = self._topics.get(topic)
        if existing is not None:
            return existing
        fault = names.topic_fault(topic) or self._template_fault(template)
        if fault is not None:
            logger.warning("topic %r not created for %s: %s", topic, remote_address, fault)
            return None
        pattern = self._topics[template]
        created = TopicConfig(
            topic_name=topic,
            # At least one queue: a topic without queues could never be sent to.
            read_queue_nums=(queues := max(1, min(queue_nums, pattern.write_queue_nums))),
            write_queue_nums=queues,
            perm=pattern.perm & ~PERM_INHERIT,
            topic_filter_type=pattern.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        self._refuse_when_full(created)
        logger.info("topic %s created from %s for %s", topic, template, remote_address)
        self._put(created)
        for listener in self._creation_listeners:
            listener(created)
        return created

    def create_for_send_back(
        self, topic: str, queue_nums: int, perm: int = _READ_WRITE, sys_flag: int = 0
    ) -> TopicConfig:
        """Return a topic that the broker itself needs, such as a retry topic, created if missing.

        Raises RequestError if the table is full.
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
        """Create or replace a topic. Raises RequestError if the table is full."""
        self._refuse_when_full(config)
        verb = "updated" if config.topic_name in self._topics else "created"
        logger.info("topic %s %s: %s", config.topic_name, verb, config)
        self._put(config)

    def delete(self, topic: str) -> bool:
        """Delete a topic; return False if it does not exist."""
        deleted = self._topics.pop(topic, None)
        if deleted is None:
            logger.warning("topic %r not deleted: it does not exist", topic)
            return False
        self._size -= deleted.line_size()
        self._note_size()
        logger.info("topic %s deleted", topic)
        self._changed([topic])
        return True

    def set_order_topics(self, ordered: Collection[str]) -> None:
        """Mark exactly these topics as ordered, following the NameServer's order configuration."""
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
        """Set or clear a flag (`TOPIC_UNIT`, `TOPIC_UNIT_SUBSCRIPTION`) of an existing topic."""
        config = self._topics.get(topic)
        if config is None:
            return
        flags = config.topic_sys_flag | flag if present else config.topic_sys_flag & ~flag
        if flags != config.topic_sys_flag:
            self._put(dataclasses.replace(config, topic_sys_flag=flags))

    def new_version(self) -> None:
        """Change the data version, so that clients and replicas read the table again."""
        self._changed(())

    def adopt(self, queue_counts: Mapping[str, int]) -> None:
        """Create the topics that have queues in the store but are missing in the table.

        Such a topic was created just before the process was killed, most likely by a send. It gets
        the queues of such a topic, because its producers may know of them.
        """
        for topic, found in queue_counts.items():
            # The queue of transaction ends has no topic, as in RocketMQ.
            if topic not in self._topics and topic != names.TRANSACTION_OP_TOPIC:
                logger.warning("topic %s created: it has messages but no configuration", topic)
                by_broker = topic[:1] == "%" or names.is_system_topic(topic)
                count = max(found, 0 if by_broker else self._config.default_topic_queue_nums)
                self._put(TopicConfig(topic, count, count))

    def take_over(self, copy: TopicConfigSerializeWrapper) -> list[str] | None:
        """Replace the table and its version by those of the master.

        Return the topics that are gone, or None if the versions were equal. Raises CopyError, and
        changes nothing, if the table exceeds a limit. As in RocketMQ, the replica's own topics go.
        """
        if copy.data_version == self.data_version:
            return None
        before, size = self._topics, self._size
        topics: dict[str, TopicConfig] = {}
        changed = []
        for name, topic in copy.topic_config_table.items():
            known = before.get(name)
            if known == topic:
                topics[name] = known
                continue
            topics[name] = topic
            changed.append(name)
            size += topic.line_size() - (known.line_size() if known is not None else 0)
        gone = [name for name in before if name not in topics]
        size -= sum(before[name].line_size() for name in gone)
        if changed:
            self._refuse_too_many(topics, size)
        self._topics, self._size = topics, size
        self.data_version = copy.data_version
        self._note_size()
        logger.info("topics copied from the master: %d changed, %d gone", len(changed), len(gone))
        self._announce([*changed, *gone])
        return gone

    def _refuse_too_many(self, topics: Mapping[str, TopicConfig], size: int) -> None:
        count = sum(not self.is_system_topic(name) for name in topics)
        limit = self._config.max_topics
        if count > limit:
            raise CopyError(f"{count} topics, limit {limit}: raise maxTopics of this replica")
        if size > MAX_REGISTRATION_TOPICS:
            raise CopyError(
                f"{size} bytes of topics to register, limit {MAX_REGISTRATION_TOPICS}: "
                "delete unused topics"
            )

    def _template_fault(self, template: str) -> str | None:
        pattern = self._topics.get(template)
        if pattern is None:
            return f"template {template!r} does not exist"
        if template == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return "autoCreateTopicEnable is false"
        if not pattern.perm & PERM_INHERIT:
            return f"{template} is not a template: its permission is {pattern.perm}"
        return None

    def _refuse_when_full(self, config: TopicConfig) -> None:
        name = config.topic_name
        if name in self._topics or self.is_system_topic(name):
            return
        fault = self._capacity.fault(len(self._topics)) or self._size_capacity.fault(
            self._size + config.line_size()
        )
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {name} not created: {fault}")

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
        self._announce(topics)

    def _announce(self, topics: Iterable[str]) -> None:
        """Call the listeners and save the table."""
        for topic in topics:
            for listener in self._listeners:
                listener(topic)
        self.file.save_soon()


class _FileContent(NamedTuple):
    """The content of the file at one instant."""

    json: TopicJson
    topics: TopicConfigSerializeWrapper

    def encode(self) -> bytes:
        return self.json.table(self.topics)


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the system topics that the settings require."""

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
