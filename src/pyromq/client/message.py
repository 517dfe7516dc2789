"""Messages to be sent (`received` has those that arrive), their checks and their unique keys.

`UniqueKeys` creates the id (property UNIQ_KEY) that identifies a message before a broker stores it,
as every RocketMQ client does:

    ip 4 | pid 2 | random 4 | milliseconds since the start of the month 4 | counter 2

as 32 upper-case hex digits. Messages are encoded on the client's event loop. Any thread may create
keys, and so may a forked child.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar

from pyromq.base.sizes import MIB
from pyromq.client.errors import IllegalMessageError
from pyromq.protocol.message import properties as property_names
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import MAX_TOPIC
from pyromq.protocol.message.system_properties import REFUSED, SHARDING_KEY, fault_of

logger = logging.getLogger(__name__)

#: Largest body that brokers accept by default (their setting maxMessageSize).
MAX_BODY = 4 * MIB
MAX_GROUP = 255
#: Characters of a unique key.
UNIQUE_KEY_SIZE = 32
#: Highest delay level of brokers with the default messageDelayLevel.
MAX_DELAY_LEVEL = 18
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_SEPARATORS = re.compile("[\x01\x02]")
_BLANK = re.compile(r"\s")
_FLAG_LIMIT = 1 << 31
#: Tags below this length cannot make the properties too long.
_MAX_PLAIN_TAGS = 1024
_UNIQ_KEY_START = property_names.UNIQ_KEY_START
_WAIT = property_names.PROPERTY_SEPARATOR + property_names.WAIT_TRUE
_WAIT_AND_TAGS_START = _WAIT + property_names.PROPERTY_SEPARATOR + property_names.TAGS_START


@dataclass(slots=True)
class Message:
    """A message to be sent.

    RocketMQ's own property names are refused in `properties`, as in Java's client. To send a
    received message to another topic, use its method `forward`.
    """

    topic: str
    #: At most 4 MiB, unless the brokers' maxMessageSize is lower.
    body: bytes
    #: One tag, which consumers can filter by.
    tags: str = ""
    #: Words to look the message up by: a list, or one string separated by spaces.
    keys: str | Sequence[str] = ""
    #: The application's own properties.
    properties: dict[str, str] = field(default_factory=dict)
    #: 32 bits for the application.
    flag: int = 0
    #: Delays delivery. Levels 1 to 18 mean 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h
    #: 2h, unless the brokers are configured otherwise.
    delay_level: int = 0
    #: Messages with the same key go to the same queue.
    ordering_key: str = ""

    #: Whether the message replies to a request.
    is_reply: ClassVar[bool] = False

    def check(self, max_delay_level: int = MAX_DELAY_LEVEL) -> None:
        """Raise IllegalMessageError if a broker would refuse or misread the message.

        `wire_properties` checks properties, tags and keys.
        """
        check_topic(self.topic)
        if type(self.body) is not bytes and not isinstance(self.body, bytearray | memoryview):
            raise IllegalMessageError(
                f"message for {self.topic!r} has a body of type {type(self.body).__name__}: "
                "expected bytes"
            )
        if not self.body:
            raise IllegalMessageError(f"message for {self.topic!r} has an empty body")
        if len(self.body) > MAX_BODY:
            raise IllegalMessageError(
                f"message for {self.topic!r} has a body of {len(self.body)} bytes, "
                f"the limit is {MAX_BODY}"
            )
        if self.flag and (not _is_number(self.flag) or not -_FLAG_LIMIT <= self.flag < _FLAG_LIMIT):
            raise IllegalMessageError(
                f"message for {self.topic!r} has the flag {self.flag!r}: expected a 32-bit integer"
            )
        if self.delay_level and (
            not _is_number(self.delay_level) or not 0 < self.delay_level <= max_delay_level
        ):
            raise IllegalMessageError(
                f"message for {self.topic!r} has the delay_level {self.delay_level!r}: expected 1 "
                f"to {max_delay_level}, or 0 for no delay; for brokers with more levels, create "
                "the producer with max_delay_level="
            )
        if self.ordering_key and not isinstance(self.ordering_key, str):
            raise _refusal("ordering_key", self.ordering_key, "expected a str")

    def wire_properties(self, unique_key: str) -> str:
        """Encode all properties for the wire: the application's, then the client's."""
        if not (self.properties or self.keys or self.delay_level or self.ordering_key):
            tags = self.tags
            if not tags or (type(tags) is str and _are_plain_tags(tags)):
                return plain_properties(unique_key, tags)
        names = property_names
        try:
            # Joined with +, which takes the text of a str enum's member and refuses other types.
            entries = [name + "\x01" + value for name, value in self.properties.items()]
            keys = self.keys if isinstance(self.keys, str) else _joined(self.keys)
            if keys:
                entries.append(names.KEYS + "\x01" + keys)
            if self.delay_level:
                entries.append(f"{names.DELAY}\x01{int(self.delay_level)}")
            if self.ordering_key:
                entries.append(SHARDING_KEY + "\x01" + self.ordering_key)
            entries.append(f"{names.UNIQ_KEY}\x01{unique_key}")
            if names.WAIT not in self.properties:
                entries.append(names.WAIT_TRUE)
            if self.tags:
                if type(self.tags) is not KeptTags:
                    _are_plain_tags(self.tags)
                # Last: brokers hash the last TAGS entry.
                entries.append(names.TAGS + "\x01" + self.tags)
        except (TypeError, AttributeError):
            self._refuse_types()
            raise
        count = len(entries)
        text = "\x02".join(entries)
        if (
            text.count("\x01") != count
            or text.count("\x02") != count - 1
            or "\x01\x02" in text
            or "" in self.properties
            or not REFUSED.isdisjoint(self.properties)
        ):
            self._refuse_values()
        self._check_size(text)
        return text

    def _check_size(self, text: str) -> None:
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as error:
            raise IllegalMessageError(
                f"properties of a message for {self.topic!r} cannot be encoded: {error}"
            ) from error
        if size > MAX_PROPERTIES:
            raise IllegalMessageError(
                f"properties of a message for {self.topic!r} take {size} bytes, "
                f"the limit is {MAX_PROPERTIES}"
            )

    def _refuse_types(self) -> None:
        if not isinstance(self.properties, Mapping):
            raise _refusal("properties", self.properties, "expected a dict of str")
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise IllegalMessageError(
                    f"property {name!r:.60}={value!r:.60}: names and values must be str"
                )
        if not isinstance(self.keys, str | Collection) or isinstance(self.keys, bytes):
            raise _refusal("keys", self.keys, "expected a str or a list of str")
        if not isinstance(self.tags, str):
            raise _refusal("tags", self.tags, "expected a str")

    def _refuse_values(self) -> None:
        everything = {
            **self.properties,
            "keys": self.keys if isinstance(self.keys, str) else _joined(self.keys),
            "tags": self.tags,
            "ordering_key": self.ordering_key,
        }
        for name, value in everything.items():
            if not name or _SEPARATORS.search(name) or _SEPARATORS.search(value):
                raise IllegalMessageError(
                    f"property {name!r}={value!r:.40} cannot be sent: a name must not be empty, "
                    "and neither name nor value may contain U+0001 or U+0002"
                )
        for name, value in self.properties.items():
            if not value:
                raise IllegalMessageError(
                    f"property {name!r} has an empty value, which brokers and consumers treat as "
                    "a missing property: leave it out"
                )
            fault = fault_of(name)
            if fault is not None:
                raise IllegalMessageError(fault)


@dataclass(slots=True)
class HalfMessage(Message):
    """A stored message that is not visible yet, as `execute` of a transaction gets it."""

    #: The id of the transaction. `check` gets it later as the message's `msg_id`.
    transaction_id: str = ""
    #: The argument given to `send_in_transaction`.
    argument: Any = None


@dataclass(slots=True)
class ClientMessage(Message):
    """A request or reply: a message with properties that only clients set."""

    system_properties: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Message, system_properties: dict[str, str]) -> ClientMessage:
        """Copy a message and add system properties."""
        return cls(**message_fields(message), system_properties=system_properties)

    @property
    def is_reply(self) -> bool:  # type: ignore[override]
        """Return whether the message replies to a request."""
        return self.system_properties.get(property_names.MESSAGE_TYPE) == property_names.REPLY

    def wire_properties(self, unique_key: str) -> str:
        """Encode all properties for the wire: the system's first."""
        own = Message.wire_properties(self, unique_key)
        text = "\x02".join([*map("\x01".join, self.system_properties.items()), own])
        self._check_size(text)
        return text


def plain_tags(message: Message, max_body: int) -> str | None:
    """Return the tags of a message without other properties or flags, None if it has some.

    Such a message needs no check but that of its topic, and its properties are
    `plain_properties`. Also None for a body above `max_body`, and for anything of an
    unexpected type. Raises IllegalMessageError.
    """
    body, tags = message.body, message.tags
    if (
        message.properties
        or message.keys
        or message.ordering_key
        or message.delay_level
        or message.flag
        or type(body) is not bytes
        or not 0 < len(body) <= max_body
        or type(message.topic) is not str
        or type(message) is not Message
    ):
        return None
    if not tags:
        return ""
    return tags if type(tags) is str and _are_plain_tags(tags) else None


def plain_properties(unique_key: str, tags: str) -> str:
    """Encode the properties of a message with nothing but tags, for the wire."""
    if not tags:
        return f"{_UNIQ_KEY_START}{unique_key}{_WAIT}"
    return f"{_UNIQ_KEY_START}{unique_key}{_WAIT_AND_TAGS_START}{tags}"


def message_fields(message: Message) -> dict[str, Any]:
    """Return a message's fields, to create an instance of another class."""
    return {each.name: getattr(message, each.name) for each in fields(Message)}


def check_message(message: object) -> None:
    """Raise IllegalMessageError unless this is a `Message`."""
    if not isinstance(message, Message):
        # Recognised by its method: the module of received messages imports this one.
        advice = (
            "send message.forward(topic)"
            if hasattr(message, "forward")
            else "write Message(topic, body)"
        )
        raise IllegalMessageError(
            f"message={message!r:.100}: expected a Message, got {type(message).__name__}: {advice}"
        )


@lru_cache(maxsize=256)  # holds legal names only: a call that raises is not cached
def _check_legal_topic(topic: str) -> None:
    if not _LEGAL_NAME.fullmatch(topic) or len(topic) > MAX_TOPIC:
        raise IllegalMessageError(
            f"topic {topic!r:.200} is not a legal name: use 1 to {MAX_TOPIC} letters, digits and "
            "%|_-"
        )


def check_topic(topic: object) -> None:
    """Raise IllegalMessageError unless this is a legal topic name."""
    if not isinstance(topic, str):
        raise _refusal("topic", topic, "expected a name")
    _check_legal_topic(topic)


def check_group(group: object) -> None:
    """Raise IllegalMessageError unless this is a legal group name."""
    if not isinstance(group, str):
        raise _refusal("group", group, "expected a name")
    if not _LEGAL_NAME.fullmatch(group) or len(group) > MAX_GROUP:
        raise IllegalMessageError(
            f"group {group!r:.300} is not a legal name: use 1 to {MAX_GROUP} letters, digits and "
            "%|_-"
        )


class KeptTags(str):
    """Tags of a forwarded message, exempt from the checks of new tags."""

    __slots__ = ()


def tags_to_keep(tags: str) -> str:
    """Return a received message's tags so that a new message may carry them, legal or not."""
    try:
        _are_plain_tags(tags)
    except IllegalMessageError:
        return KeptTags(tags)
    return tags


@lru_cache(maxsize=1024)
def _are_plain_tags(tags: str) -> bool:
    """Return whether tags need no further checks; raises IllegalMessageError."""
    if "||" in tags or tags.strip().strip("|") != tags or tags == "*":
        raise IllegalMessageError(
            f"tags={tags!r:.100}: a message has one tag, and no subscription can match this one: "
            "it must not contain ||, start or end with a space or |, or be *"
        )
    return len(tags) < _MAX_PLAIN_TAGS and tags.isascii() and not _SEPARATORS.search(tags)


def _joined(keys: Iterable[str]) -> str:
    """Join keys for the property KEYS."""
    for key in keys:
        if not isinstance(key, str) or not key or _BLANK.search(key):
            raise IllegalMessageError(
                f"keys={keys!r:.100}: {key!r:.60} is not a word without spaces"
            )
    return property_names.KEY_SEPARATOR.join(keys)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refusal(name: str, value: object, expectation: str) -> IllegalMessageError:
    return IllegalMessageError(f"{name}={value!r:.100}: {expectation}, got {type(value).__name__}")


class UniqueKeys:
    """A generator of unique keys."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        #: Returns the number of the next key.
        self.next_number = self._counter.__next__
        self._prefix = self._head = ""
        self._now = 0
        self._month_start = self._month_end = 0

    def __call__(self) -> str:
        """Return a key that no other client creates."""
        now = time.time_ns() // 1_000_000  # not now_ms(): one call per message less
        if now != self._now:
            self._start_millisecond(now)
        return self._head + "%04X" % (next(self._counter) & 0xFFFF)

    def head(self, now: int) -> str:
        """Return the start of the keys of a time in milliseconds."""
        if now != self._now:
            self._start_millisecond(now)
        return self._head

    def numbers(self, count: int) -> list[int]:
        """Return the numbers of the next keys."""
        return [*itertools.islice(self._counter, count)]

    @staticmethod
    def key(head: str, number: int) -> str:
        """Return the key of a head and a number."""
        return head + "%04X" % (number & 0xFFFF)

    def forget(self) -> None:
        """Start over in a forked child, whose keys carry its own process id."""
        self._prefix = ""
        self._now = 0

    def _start_millisecond(self, now: int) -> None:
        """Compute the part that all keys of a millisecond share."""
        if not self._prefix:
            number = struct.pack(">H", os.getpid() & 0xFFFF)
            self._prefix = (
                (socket.inet_aton(local_address()) + number + os.urandom(4)).hex().upper()
            )
        if now >= self._month_end:
            self._month_start, self._month_end = _month_around(now)
        # A clock set back must not make the difference negative.
        elapsed = max(0, now - self._month_start) & 0xFFFFFFFF
        self._head = f"{self._prefix}{elapsed:08X}"
        self._now = now


#: Shared by all producers of the process, whose keys share one counter.
create_unique_key = UniqueKeys()
os.register_at_fork(after_in_child=create_unique_key.forget)


@lru_cache(maxsize=1)
def local_address() -> str:
    """Return the IPv4 address under which other machines see this one, or else loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing, but picks the outgoing interface (192.0.2.0/24 is reserved).
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address


def _month_around(now: int) -> tuple[int, int]:
    """Return start and end, in milliseconds, of the local month that contains `now`."""
    today = time.localtime(now / 1000)
    start, end = (
        time.mktime((today.tm_year, month, 1, 0, 0, 0, 0, 1, -1))
        for month in (today.tm_mon, today.tm_mon + 1)
    )
    return int(start * 1000), int(end * 1000)
