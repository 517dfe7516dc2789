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

LEDGER_DATA_FILE = 4096
LEDGER_INDEX_FILE = 16 * 32
#: Directories of DLedger nodes, and the steps of GoldenLedger.java that led to them.
LEDGERS: dict[str, list[str]] = {
    # Blanks of many sizes, several files of both kinds, three terms.
    "appended": [
        "lead:1",
        *(f"append:{size}" for size in (1, 2, 127, 128, 129, 900, 1500, 1100, 300, 2)),
        "lead:2",
        "append:400:9",
        "append:4040",
        "append:4040",
        "lead:5",
        "append:300:13",
        "commit:30",
        "restart",
        "lead:5",
        "append:10:3",
    ],
    # Cut within a file, at a blank, and several files back, each written again in a new term.
    "truncated": [
        "lead:1",
        "append:500:30",
        "follow:2",
        "cut:25",
        "replace:20:11480:600",
        "accept:70:12128",
        "follow:3",
        "cut:6",
        "accept:400:4096",
        "accept:200:4544",
        "commit:7",
    ],
    # A new follower of a leader whose log begins at a later file, with entries of its own.
    "rebuilt": [
        "lead:1",
        "append:500:12",
        "follow:4",
        "replace:700:40960:800",
        "accept:3000:41808",
        "accept:500:45056",
        "commit:701",
    ],
    # Java leaves the bytes behind a cut: the entries 3 and 4 are back when it starts again.
    "revived": ["lead:1", "append:500:5", "follow:2", "cut:2"],
}

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
