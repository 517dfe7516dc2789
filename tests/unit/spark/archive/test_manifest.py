from __future__ import annotations

import orjson
import pytest

from pyromq.spark.archive.manifest import ARCHIVE, COMPACT, AddedFile, Manifest, ManifestError
from pyromq.spark.columns import MAP
from pyromq.spark.origins.origin import LostRecords, Queue, QueueRange

QUEUE = Queue("Orders", "broker:a", 3)
WHOLE = Manifest(
    12,
    ARCHIVE,
    1794813120000,
    MAP,
    {QUEUE: 42},
    (QueueRange(QUEUE, 30, 42),),
    (LostRecords(QUEUE, 30, 33, "they have expired"),),
    (AddedFile("topic=Orders/hour=h/1.parquet", "_pyromq/staging/x.staged", 16, 4711),),
)


@pytest.mark.parametrize(
    "manifest",
    [
        WHOLE,
        Manifest(1, ARCHIVE, 0),
        Manifest(
            2, COMPACT, 0, removed=("a.parquet",), directory="topic=Orders/hour=h", swapped=False
        ),
    ],
)
def test_round_trip(manifest: Manifest) -> None:
    assert Manifest.decode(manifest.encode()) == manifest


def test_rows() -> None:
    assert WHOLE.rows == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2: this pyromq reads version 1"),
        ({"kind": "other"}, "kind 'other'"),
        ({"properties": "none"}, "properties 'none'"),
        ({"positions": {"Orders": {"broker": 1}}}, "broker"),
        ({"ranges": [["a"]]}, "Queue"),
        ({"removed": ["../../etc/passwd"]}, "leaves the archive"),
        ({"directory": "/etc"}, "leaves the archive"),
        (
            {"added": [{"path": "a/../../b", "staged": "x", "rows": 1, "bytes": 1}]},
            "leaves the archive",
        ),
        ({"added": [{}]}, "path"),
    ],
)
def test_invalid_manifests_are_rejected(change: dict[str, object], message: str) -> None:
    values = orjson.loads(WHOLE.encode()) | change
    with pytest.raises(ManifestError, match=message):
        Manifest.decode(orjson.dumps(values))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}"])
def test_bytes_that_are_not_a_manifest(content: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.decode(content)
