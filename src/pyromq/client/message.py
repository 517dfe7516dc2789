"""Messages as an application sends them; what it receives is in `received`.

`UniqueKeys` makes the id (property UNIQ_KEY) by which every RocketMQ client
knows a message before any broker has seen it:

    ip 4 | pid 2 | random 4 | milliseconds since the month began 4 | counter 2

as 32 upper-case hex digits. Used on the client's event loop; `UniqueKeys`
may be called from any thread and after a fork.
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

from pyromq.client.errors import IllegalMessageError
from pyromq.protocol.message import properties as property_names
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import MAX_TOPIC
from pyromq.protocol.message.system_properties import REFUSED, SHARDING_KEY, fault_of

logger = logging.getLogger(__name__)

#: What a broker takes by default (its setting maxMessageSize).
MAX_BODY = 4 * 1024 * 1024
MAX_GROUP = 255
#: The highest delay level of brokers whose messageDelayLevel nobody has changed.
MAX_DELAY_LEVEL = 18
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_SEPARATORS = re.compile("[\x01\x02]")
_BLANK = re.compile(r"\s")
_FLAG_LIMIT = 1 << 31
#: Fewer characters than that never make properties too long.
_SHORT_TAGS = 1024
_UNIQ_KEY_START = property_names.UNIQ_KEY_START
_WAIT = property_names.PROPERTY_SEPARATOR + property_names.WAIT_TRUE
_WAIT_AND_TAGS_START = _WAIT + property_names.PROPERTY_SEPARATOR + property_names.TAGS_START


@dataclass(slots=True)
class Message:
    """A message to be sent.

    `tags` is what consumers can filter by, `keys` the words under which the message can be
    looked up (several: a list, or one string with spaces between them), `properties` the
    application's own. With a `delay_level` (1 to 18 unless brokers are configured otherwise:
    1s 5s 10s 30s 1m ... 2h) consumers get it later. Messages with the same `ordering_key` go to
    the same queue.

    Properties whose names belong to RocketMQ are refused, as in Java's client
    (`protocol.system_properties`). To send a received message on, use its method `forward`.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str | Sequence[str] = ""
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    ordering_key: str = ""

    #: Whether it answers a request.
    is_reply: ClassVar[bool] = False

    def check(self, max_delay_level: int = MAX_DELAY_LEVEL) -> None:
        """Raise IllegalMessageError for what a broker would refuse, or take for something else.

        `wire_properties` checks properties, tags and keys.
        """
        check_topic(self.topic)
        if type(self.body) is not bytes and not isinstance(self.body, bytearray | memoryview):
            raise IllegalMessageError(
                f"message for {self.topic!r} has a body of type {type(self.body).__name__}: "
                "bytes are needed"
            )
        if not self.body:
            raise IllegalMessageError(f"message for {self.topic!r} has an empty body")
        if len(self.body) > MAX_BODY:
            raise IllegalMessageError(
                f"message for {self.topic!r} has a body of {len(self.body)} bytes, "
                f"at most {MAX_BODY} are possible"
            )
        if self.flag and (not _is_number(self.flag) or not -_FLAG_LIMIT <= self.flag < _FLAG_LIMIT):
            raise IllegalMessageError(
                f"message for {self.topic!r} has the flag {self.flag!r}: 32 bits are possible"
            )
        if self.delay_level and (
            not _is_number(self.delay_level) or not 0 < self.delay_level <= max_delay_level
        ):
            raise IllegalMessageError(
                f"message for {self.topic!r} has the delay_level {self.delay_level!r}: 1 to "
                f"{max_delay_level} are possible, and 0 for none; for brokers with more levels, "
                "make the producer with max_delay_level="
            )
        if self.ordering_key and not isinstance(self.ordering_key, str):
            raise _refusal("ordering_key", self.ordering_key, "a str is needed")

    def wire_properties(self, unique_key: str) -> str:
        """All properties as they are sent: the application's, then the client's."""
        if not (self.properties or self.keys or self.delay_level or self.ordering_key):
            tags = self.tags
            if not tags:
                return f"{_UNIQ_KEY_START}{unique_key}{_WAIT}"
            if type(tags) is str and _are_plain_tags(tags):
                return f"{_UNIQ_KEY_START}{unique_key}{_WAIT_AND_TAGS_START}{tags}"
        names = property_names
        try:
            # Joined with +, which takes the text of an enum's member, and refuses what is none.
            pieces = [name + "\x01" + value for name, value in self.properties.items()]
            keys = self.keys if isinstance(self.keys, str) else _joined(self.keys)
            if keys:
                pieces.append(names.KEYS + "\x01" + keys)
            if self.delay_level:
                pieces.append(f"{names.DELAY}\x01{int(self.delay_level)}")
            if self.ordering_key:
                pieces.append(SHARDING_KEY + "\x01" + self.ordering_key)
            pieces.append(f"{names.UNIQ_KEY}\x01{unique_key}")
            if names.WAIT not in self.properties:
                pieces.append(names.WAIT_TRUE)
            if self.tags:
                if type(self.tags) is not KeptTags:
                    _are_plain_tags(self.tags)
                # Last: brokers remember the hash of what stands last.
                pieces.append(names.TAGS + "\x01" + self.tags)
        except (TypeError, AttributeError):
            self._refuse_types()
            raise
        count = len(pieces)
        text = "\x02".join(pieces)
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
                f"properties of a message for {self.topic!r} are no text: {error}"
            ) from error
        if size > MAX_PROPERTIES:
            raise IllegalMessageError(
                f"properties of a message for {self.topic!r} take {size} bytes, "
                f"at most {MAX_PROPERTIES} are possible"
            )

    def _refuse_types(self) -> None:
        if not isinstance(self.properties, Mapping):
            raise _refusal("properties", self.properties, "a dict of texts is needed")
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise IllegalMessageError(
                    f"property {name!r:.60}={value!r:.60}: names and values must be str"
                )
        if not isinstance(self.keys, str | Collection) or isinstance(self.keys, bytes):
            raise _refusal("keys", self.keys, "a str or a list of them is needed")
        if not isinstance(self.tags, str):
            raise _refusal("tags", self.tags, "a str is needed")

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
                    f"property {name!r}={value!r:.40} cannot be sent: names must not be empty, "
                    "names and values must not hold the characters U+0001 and U+0002"
                )
        for name, value in self.properties.items():
            if not value:
                raise IllegalMessageError(
                    f"property {name!r} has an empty value, which brokers and consumers take for "
                    "no property at all: leave it out"
                )
            fault = fault_of(name)
            if fault is not None:
                raise IllegalMessageError(fault)


@dataclass(slots=True)
class ClientMessage(Message):
    """A message with properties that only a client sets: a request, or a reply."""

    system_properties: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Message, system_properties: dict[str, str]) -> ClientMessage:
        """The same message with these properties beside its own."""
        return cls(**message_fields(message), system_properties=system_properties)

    @property
    def is_reply(self) -> bool:  # type: ignore[override]
        """Whether it answers a request."""
        return self.system_properties.get(property_names.MESSAGE_TYPE) == property_names.REPLY

    def wire_properties(self, unique_key: str) -> str:
        """All properties as they are sent."""
        own = Message.wire_properties(self, unique_key)
        text = "\x02".join([*map("\x01".join, self.system_properties.items()), own])
        self._check_size(text)
        return text


def message_fields(message: Message) -> dict[str, Any]:
    """A message's fields, for one of another class."""
    return {each.name: getattr(message, each.name) for each in fields(Message)}


def check_message(message: object) -> None:
    """Raise IllegalMessageError for what is not a message to be sent."""
    if not isinstance(message, Message):
        # By its method, as received messages are made by another module, which needs this one.
        advice = (
            "send message.forward(topic)"
            if hasattr(message, "forward")
            else "write Message(topic, body)"
        )
        raise IllegalMessageError(
            f"message={message!r:.100}: a Message is needed, got {type(message).__name__}: {advice}"
        )


@lru_cache(maxsize=256)  # of those that are possible: what raises is not kept
def _check_legal_topic(topic: str) -> None:
    if not _LEGAL_NAME.fullmatch(topic) or len(topic) > MAX_TOPIC:
        raise IllegalMessageError(
            f"topic {topic!r:.200} is not possible: 1 to {MAX_TOPIC} letters, digits and %|_- are"
        )


def check_topic(topic: object) -> None:
    """Raise IllegalMessageError for what cannot be a topic's name."""
    if not isinstance(topic, str):
        raise _refusal("topic", topic, "a name is needed")
    _check_legal_topic(topic)


def check_group(group: object) -> None:
    """Raise IllegalMessageError for what cannot be a group's name."""
    if not isinstance(group, str):
        raise _refusal("group", group, "a name is needed")
    if not _LEGAL_NAME.fullmatch(group) or len(group) > MAX_GROUP:
        raise IllegalMessageError(
            f"group {group!r:.300} is not possible: 1 to {MAX_GROUP} letters, digits and %|_- are"
        )


class KeptTags(str):
    """Tags of a message that somebody else has sent: they go on as they are."""

    __slots__ = ()


def tags_to_keep(tags: str) -> str:
    """A received message's tags for another message, also such as our own may not have."""
    try:
        _are_plain_tags(tags)
    except IllegalMessageError:
        return KeptTags(tags)
    return tags


@lru_cache(maxsize=1024)
def _are_plain_tags(tags: str) -> bool:
    """Whether tags need no further look; raises IllegalMessageError when they cannot be meant."""
    if "||" in tags or tags.strip().strip("|") != tags or tags == "*":
        raise IllegalMessageError(
            f"tags={tags!r:.100}: a message has one tag, and no subscription can name this one: "
            "it must not hold ||, begin or end with a blank or |, or be *"
        )
    return len(tags) < _SHORT_TAGS and tags.isascii() and not _SEPARATORS.search(tags)


def _joined(keys: Iterable[str]) -> str:
    """Several keys as the property has them."""
    for key in keys:
        if not isinstance(key, str) or not key or _BLANK.search(key):
            raise IllegalMessageError(
                f"keys={keys!r:.100}: each must be a word without blanks, which {key!r:.60} is not"
            )
    return property_names.KEY_SEPARATOR.join(keys)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refusal(name: str, value: object, need: str) -> IllegalMessageError:
    return IllegalMessageError(f"{name}={value!r:.100}: {need}, got {type(value).__name__}")


class UniqueKeys:
    """Makes unique keys, each call another one."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._prefix = self._head = ""
        self._now = 0
        self._month_start = self._month_end = 0

    def __call__(self) -> str:
        """A key that no other client makes."""
        now = time.time_ns() // 1_000_000
        if now != self._now:
            self._begin(now)
        return self._head + "%04X" % (next(self._counter) & 0xFFFF)

    def forget(self) -> None:
        """In a new process: its keys begin with its own number."""
        self._prefix = ""
        self._now = 0

    def _begin(self, now: int) -> None:
        """A millisecond's keys begin alike."""
        if not self._prefix:
            number = struct.pack(">H", os.getpid() & 0xFFFF)
            self._prefix = (
                (socket.inet_aton(local_address()) + number + os.urandom(4)).hex().upper()
            )
        if now >= self._month_end:
            self._month_start, self._month_end = _month_around(now)
        # A clock that was set back must not make the difference negative.
        elapsed = max(0, now - self._month_start) & 0xFFFFFFFF
        self._head = f"{self._prefix}{elapsed:08X}"
        self._now = now


#: The process's own: all producers share it, as their keys share one counter.
create_unique_key = UniqueKeys()
os.register_at_fork(after_in_child=create_unique_key.forget)


@lru_cache(maxsize=1)
def local_address() -> str:
    """The IPv4 address by which other machines see this one; loopback when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it only asks which interface leads out (192.0.2.0/24 is nobody's).
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address


def _month_around(now: int) -> tuple[int, int]:
    """Begin and end of the month of local time in which `now` lies, in milliseconds."""
    today = time.localtime(now / 1000)
    start, end = (
        time.mktime((today.tm_year, month, 1, 0, 0, 0, 0, 1, -1))
        for month in (today.tm_mon, today.tm_mon + 1)
    )
    return int(start * 1000), int(end * 1000)
