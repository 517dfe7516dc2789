"""The options of a write, and the columns that can be written, checked when it is planned.

    WriteOptions.parse({"nameserver": "localhost:9876", "topic": "Orders", "dedup": "true"})
    check_columns(schema, options)

Every mistake is refused by its name before a task runs: an unknown option or column (with
the nearest known one), a value or type of another form, what is missing. The driver parses;
tasks get the frozen result.
"""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pyromq.client.errors import IllegalMessageError
from pyromq.client.message import check_group, check_topic
from pyromq.remoting.address import AddressError, parse_addresses
from pyromq.spark.options import OptionError

_Value = TypeVar("_Value")

KNOWN: Final = (
    "nameserver",
    "topic",
    "dedup",
    "writeId",
    "producerGroup",
    "batchBytes",
    "maxInFlight",
    "maxMessageSize",
    "sendTimeout",
    "deliveryTimeout",
    "maxRowsPerSecond",
    "accessKey",
    "secretKey",
    "tls",
)
_BY_LOWER_NAME: Final = {name.lower(): name for name in KNOWN}
#: Of a stream, and of a table in the catalog; they mean nothing here.
_SPARKS_OWN: Final = frozenset(
    {"checkpointlocation", "queryname", "path", "paths", "serialization.format"}
)
_BYTES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20}
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True)
class WriteOptions:
    """All options of a write."""

    name_servers: tuple[str, ...]
    #: Of rows without a topic of their own.
    topic: str | None = None
    #: Whether a task that is run again gives its rows the same unique keys.
    dedup: bool = False
    #: What makes the keys of one batch write others than those of the next.
    write_id: str = ""
    producer_group: str = "PYROMQ_SPARK"
    #: Of one request.
    batch_bytes: int = 512 * 1024
    #: Requests of a task that are not answered yet.
    max_in_flight: int = 8
    max_message_size: int = 4 * 1024 * 1024
    #: In seconds, as below: of one attempt.
    send_timeout: float = 10.0
    #: Until a request that brokers do not take is given up.
    delivery_timeout: float = 120.0
    #: Of each task; None: no limit.
    max_rows_per_second: float | None = None
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check everything a user has said; raises OptionError."""
        given = _Given(options)
        parsed = cls(
            name_servers=_name_servers(given),
            topic=given.checked("topic", check_topic),
            dedup=given.flag("dedup", False),
            write_id=given.text("writeId") or uuid.uuid4().hex,
            producer_group=given.checked("producerGroup", check_group) or cls.producer_group,
            batch_bytes=int(given.amount("batchBytes", _BYTES, "512k") or cls.batch_bytes),
            max_in_flight=given.number("maxInFlight") or cls.max_in_flight,
            max_message_size=int(
                given.amount("maxMessageSize", _BYTES, "4m") or cls.max_message_size
            ),
            send_timeout=given.amount("sendTimeout", _SECONDS, "10s") or cls.send_timeout,
            delivery_timeout=(
                given.amount("deliveryTimeout", _SECONDS, "2m") or cls.delivery_timeout
            ),
            max_rows_per_second=given.number("maxRowsPerSecond"),
            access_key=given.text("accessKey") or "",
            secret_key=given.text("secretKey") or "",
            tls=given.flag("tls", False),
        )
        if bool(parsed.access_key) != bool(parsed.secret_key):
            raise OptionError("options accessKey and secretKey are only possible together")
        if "writeId" in given and not parsed.dedup:
            raise OptionError("option writeId has no effect without dedup=true")
        if parsed.batch_bytes > parsed.max_message_size:
            raise OptionError(
                f"option batchBytes={parsed.batch_bytes} is above maxMessageSize="
                f"{parsed.max_message_size}: brokers refuse such requests"
            )
        return parsed


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse a frame whose columns cannot be messages; raises ValueError."""
    for column in schema.fields:
        types = _COLUMNS.get(column.name)
        if types is None:
            raise ValueError(_unknown("column", column.name, _COLUMNS))
        if not any(_is_of(column.dataType, wanted) for wanted in types):
            expected = " or ".join(_names_of(types))
            raise ValueError(
                f"column {column.name!r} is of type {column.dataType.simpleString()}: expected "
                f"{expected}; cast it before the write"
            )
    names = schema.fieldNames()
    if "body" not in names:
        raise ValueError("there is no column 'body': a message needs one, as binary or string")
    if "topic" not in names and options.topic is None:
        raise ValueError("nothing says which topic: give a column 'topic' or the option topic")
    if "brokerName" in names and "queueId" not in names:
        raise ValueError("column 'brokerName' has no effect without a column 'queueId'")


#: The columns of a message, and the types that each may have.
_COLUMNS: Final[dict[str, tuple[type[DataType] | DataType, ...]]] = {
    "topic": (StringType,),
    "body": (BinaryType, StringType),
    "keys": (StringType, ArrayType(StringType())),
    "tags": (StringType,),
    "properties": (MapType(StringType(), StringType()), StringType),
    "delayLevel": _WHOLE,
    "orderingKey": (StringType,),
    "queueId": _WHOLE,
    "brokerName": (StringType,),
    "uniqueKey": (StringType,),
    "flag": _WHOLE,
    "sendAt": (TimestampType,),
}
COLUMN_NAMES: Final = tuple(_COLUMNS)


def _is_of(found: DataType, wanted: type[DataType] | DataType) -> bool:
    if isinstance(wanted, type):
        return isinstance(found, wanted)
    if isinstance(wanted, ArrayType):
        return isinstance(found, ArrayType) and isinstance(found.elementType, StringType)
    return (
        isinstance(found, MapType)
        and isinstance(found.keyType, StringType)
        and isinstance(found.valueType, StringType)
    )


def _names_of(types: Iterable[type[DataType] | DataType]) -> list[str]:
    return [
        (kind if isinstance(kind, DataType) else kind()).simpleString()
        for kind in types
        if kind not in (ByteType, ShortType)
    ]


class _Given:
    """What a user has said, by the options' own names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in options.items():
            known = _BY_LOWER_NAME.get(name.lower())
            if known is not None:
                self._values[known] = value
            elif name.lower() not in _SPARKS_OWN:
                raise OptionError(_unknown("option", name, KNOWN))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """A value as it is, without spaces around it; an empty one is refused."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value.strip():
            raise OptionError(f"option {name} is empty: give a value, or leave it out")
        return value.strip()

    def checked(self, name: str, check: Callable[[str], None]) -> str | None:
        """A name that a function does not refuse."""
        text = self.text(name)
        if text is not None:
            try:
                check(text)
            except IllegalMessageError as error:
                raise OptionError(f"option {name}: {error}") from error
        return text

    def number(self, name: str) -> int | None:
        """A whole number above 0."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[1-9]\d{0,17}", text):
            raise OptionError(f"option {name}={text!r:.80}: expected a whole number above 0")
        return int(text)

    def amount(self, name: str, units: Mapping[str, float], example: str) -> float | None:
        """A number above 0 with one of these units, or without one."""
        text = self.text(name)
        if text is None:
            return None
        found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.lower())
        if found is None or found[2] not in units or not int(found[1]):
            known = ", ".join(filter(None, units))
            raise OptionError(
                f"option {name}={text!r:.80}: expected a number above 0 with a unit ({known}), "
                f"for example {example}"
            )
        return int(found[1]) * units[found[2]]

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(f"option {name}={text!r:.80}: expected true or false")
        return text.lower() == "true"


def _name_servers(given: _Given) -> tuple[str, ...]:
    text = given.text("nameserver")
    if text is None:
        raise OptionError("nothing says where to write: give the option nameserver (host:port)")
    try:
        return tuple(parse_addresses(text))
    except AddressError as error:
        raise OptionError(f"option nameserver={text!r:.200}: {error}") from error


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    subject = f"there is no {kind} {name!r:.80} to write"
    if near:
        return f"{subject}: is {lower[near[0]]} meant?"
    return f"{subject}: there are {', '.join(lower.values())}"
