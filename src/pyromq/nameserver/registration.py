"""Read a broker's registration: all its topics, as JSON or compressed.

Registrations are the largest requests a NameServer gets. Reading one is bounded (bytes after
decompression, values, topics, filter servers) and yields between slices of `SLICE_TOPICS` topics,
so that the caller can serve other requests meanwhile.

Pure, except that `unknown_topics` looks into the route table. Called by `handlers` on the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from pyromq.protocol.java.fastjson import parse_json
from pyromq.protocol.java.wire_types import shorten
from pyromq.protocol.wire.bodies import (
    RegisterBrokerBody,
    RegistrationTooLargeError,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

#: Topics per slice, which takes a few milliseconds.
SLICE_TOPICS: Final = 1000
#: Filter servers of a broker. RocketMQ abandoned them; few brokers ever had one.
MAX_FILTER_SERVERS: Final = 64
#: Characters of a filter server's address.
MAX_FILTER_SERVER_LENGTH: Final = 512

#: JSON values per topic: seven, plus room for fields of later versions.
_VALUES_PER_TOPIC: Final = 12
_OTHER_VALUES: Final = 1000


class Registration(NamedTuple):
    """A broker's registration; `filter_servers` is None if it names none."""

    topics: TopicConfigSerializeWrapper
    filter_servers: list[str] | None


@dataclass(frozen=True, slots=True)
class RegistrationReader:
    """Read registrations of at most `max_size` bytes and `max_topics` topics."""

    max_size: int
    max_topics: int
    #: Filters a slice of a broker's parsed topic table: returns new and changed topics.
    unknown_topics: Callable[[str, Mapping[str, Any]], dict[str, Any]]

    def read(
        self, broker_name: str, body: bytes, *, compressed: bool, topics_only: bool
    ) -> Generator[None, None, Registration]:
        """Read a registration, skipping topics that are known and unchanged.

        `topics_only` is the form of brokers before 3.0.11. Raises `BodyError`.
        """
        if compressed and not topics_only:
            read = yield from RegisterBrokerBody.decode_compressed(
                body, self.max_size, self.max_topics, SLICE_TOPICS
            )
        else:
            value = self._parsed(body)
            if topics_only:
                value = {"topicConfigSerializeWrapper": value}
            read = yield from self._read_value(broker_name, value)
        if topics_only:
            return Registration(read.topic_config_serialize_wrapper, None)
        return Registration(
            read.topic_config_serialize_wrapper, _checked_servers(read.filter_server_list)
        )

    def _parsed(self, body: bytes) -> Any:
        if len(body) > self.max_size:
            raise RegistrationTooLargeError(f"{len(body)} bytes, limit {self.max_size}")
        # Tiny JSON values take fifty times their size in memory: count before parsing.
        count = body.count(b",") + body.count(b"{") + body.count(b"[")
        limit = _VALUES_PER_TOPIC * self.max_topics + _OTHER_VALUES
        if count > limit:
            raise RegistrationTooLargeError(f"{count} values, limit {limit}")
        return parse_json(body, standard_json=True)

    def _read_value(
        self, broker_name: str, value: Any
    ) -> Generator[None, None, RegisterBrokerBody]:
        """Do what `RegisterBrokerBody.from_value` does, in slices."""
        wrapper = value.get("topicConfigSerializeWrapper") if isinstance(value, dict) else None
        if not isinstance(wrapper, dict) or not isinstance(
            table := wrapper.get("topicConfigTable"), dict
        ):
            return RegisterBrokerBody.from_value(value)
        if len(table) > self.max_topics:
            raise RegistrationTooLargeError(f"{len(table)} topics, limit {self.max_topics}")
        topics: dict[str, TopicConfig] = {}
        items = iter(table.items())
        while part := dict(islice(items, SLICE_TOPICS)):
            # A malformed topic is reported by the decoder below.
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                part = self.unknown_topics(broker_name, part)
            topics |= TopicConfigSerializeWrapper.from_value(
                {"topicConfigTable": part}
            ).topic_config_table
            yield
        wrapper["topicConfigTable"] = None
        body = RegisterBrokerBody.from_value(value)
        body.topic_config_serialize_wrapper.topic_config_table = topics
        return body


def _checked_servers(servers: list[str]) -> list[str]:
    if len(servers) > MAX_FILTER_SERVERS:
        raise RegistrationTooLargeError(
            f"{len(servers)} filter servers, limit {MAX_FILTER_SERVERS}"
        )
    for server in servers:
        if len(server) > MAX_FILTER_SERVER_LENGTH:
            raise RegistrationTooLargeError(
                f"filter server {shorten(server)} has {len(server)} characters,"
                f" limit {MAX_FILTER_SERVER_LENGTH}"
            )
    return servers
