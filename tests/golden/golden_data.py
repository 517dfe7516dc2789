"""Reads tests/golden/data; see capture.py for what is in it and where it came from."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

#: Sizes of the golden stores: so small that a few dozen messages make every file roll.
COMMIT_LOG_SEGMENT = 8 * 1024
CONSUME_QUEUE_SEGMENT = 20 * 20
EXTENSION_SEGMENT = 4096
INDEX_SLOTS = 31
INDEX_ENTRIES = 100

Entry = dict[str, Any]


def read_index(name: str) -> Any:
    """The JSON file of that name."""
    return json.loads((DATA / f"{name}.json").read_bytes())


def read_bytes(name: str) -> bytes:
    """The binary file of that name."""
    return (DATA / f"{name}.bin").read_bytes()


def cut(data: bytes, place: Entry) -> bytes:
    """The piece of `data` that an index entry speaks of."""
    start: int = place["start"]
    piece = data[start : start + place["length"]]
    assert len(piece) == place["length"], f"the index names bytes that are not there: {place}"
    return piece


def unpack_store(name: str, target: Path) -> None:
    """Unpack a store directory."""
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        # The filter came with 3.11.4; what is unpacked here is our own.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(target, **safely)
