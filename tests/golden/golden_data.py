"""Read tests/golden/data; capture.py describes its contents and origin."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

#: Sizes of the golden stores, so small that a few dozen messages fill every kind of file.
COMMIT_LOG_SEGMENT = 8 * 1024
CONSUME_QUEUE_SEGMENT = 20 * 20
EXTENSION_SEGMENT = 4096
INDEX_SLOTS = 31
INDEX_ENTRIES = 100

Entry = dict[str, Any]


def read_index(name: str) -> Any:
    """Return the content of a JSON file."""
    return json.loads((DATA / f"{name}.json").read_bytes())


def read_bytes(name: str) -> bytes:
    """Return the content of a binary file."""
    return (DATA / f"{name}.bin").read_bytes()


def cut(data: bytes, place: Entry) -> bytes:
    """Return the bytes of `data` that an index entry refers to."""
    start: int = place["start"]
    piece = data[start : start + place["length"]]
    assert len(piece) == place["length"], f"the index names bytes that are not there: {place}"
    return piece


def unpack_store(name: str, target: Path) -> None:
    """Unpack a store directory."""
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        # The filter argument needs 3.11.4; the archive is our own.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(target, **safely)
