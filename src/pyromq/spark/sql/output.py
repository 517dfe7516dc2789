"""Format rows as a table, JSON lines or CSV.

    for line in render(columns, rows, Format.JSON): ...

Binary values are shown as text if they are UTF-8 without control characters, else as hex digits
(`0x00ff`); times in ISO 8601, in UTC. JSON and CSV are produced row by row. A table needs all of
its rows first, because its columns are as wide as their widest values. Pure.
"""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import orjson

#: Longer values are truncated in tables.
_MAX_CELL_WIDTH: Final = 60


class Format(enum.Enum):
    """The format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def render(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Format) -> Iterator[str]:
    """Yield the lines that represent these rows."""
    if form is Format.JSON:
        return _json(columns, rows)
    if form is Format.CSV:
        return _csv(columns, rows)
    return _table(columns, rows)


def _json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    for row in rows:
        values = {name: plain(value) for name, value in zip(columns, row, strict=True)}
        yield orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS).decode()


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield _csv_line(columns)
    for row in rows:
        yield _csv_line([_text(value) for value in row])


def _csv_line(values: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    shown = [[_cell(value) for value in row] for row in rows]
    widths = [
        max([len(name), *(len(row[place]) for row in shown)]) for place, name in enumerate(columns)
    ]
    yield _line(columns, widths)
    yield "-+-".join("-" * width for width in widths)
    for row in shown:
        yield _line(row, widths)


def _line(values: Sequence[str], widths: Sequence[int]) -> str:
    padded = [value.ljust(width) for value, width in zip(values, widths, strict=True)]
    return " | ".join(padded).rstrip()


def _cell(value: Any) -> str:
    text = "".join(char if char.isprintable() else " " for char in _text(value, "NULL"))
    return text if len(text) <= _MAX_CELL_WIDTH else f"{text[: _MAX_CELL_WIDTH - 3]}..."


def _text(value: Any, null: str = "") -> str:
    value = plain(value)
    if value is None:
        return null
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def plain(value: Any) -> Any:
    """Return a value of a row as a JSON value."""
    if isinstance(value, bytes | bytearray):
        return _binary(bytes(value))
    if isinstance(value, datetime):
        # PySpark returns local times without a zone.
        moment = value.astimezone(UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "asDict"):  # a struct
        return {key: plain(item) for key, item in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def _binary(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return (
        text if all(char.isprintable() or char in "\t\r\n" for char in text) else f"0x{value.hex()}"
    )
