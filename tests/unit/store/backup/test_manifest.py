from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from pyromq.store.backup.manifest import FileFacts, Manifest, RaftFacts
from pyromq.store.results import StoreError

SHA = "0" * 64
MANIFEST = Manifest(
    name="20261117T040000Z",
    version="1",
    started=1,
    finished=2,
    source={"host": "h", "running": True},
    log_begin=100,
    log_end=250,
    segment_size=100,
    raft=None,
    settings={"maxIndexNum": "64"},
    files=(
        FileFacts(f"commitlog/{100:020}", 100, 90, SHA),
        FileFacts(f"commitlog/{200:020}", 50, 50, SHA),
        FileFacts("config/topics.json", 7, 7, SHA),
    ),
)


def test_round_trip() -> None:
    assert Manifest.decode(MANIFEST.encode()) == MANIFEST
    raft = replace(MANIFEST, raft=RaftFacts("n0", 7, 100))
    assert Manifest.decode(raft.encode()) == raft
    assert MANIFEST.size == 157
    assert [file.base for file in MANIFEST.segments] == [100, 200]


def test_an_empty_log() -> None:
    empty = replace(MANIFEST, log_begin=0, log_end=0, files=())
    assert Manifest.decode(empty.encode()) == empty


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"files": [{"path": "../x", "size": 1, "dataEnd": 1, "sha256": SHA}]},
        {"files": [{"path": "/etc/x", "size": 1, "dataEnd": 1, "sha256": SHA}]},
        {"files": [{"path": "commitlog/topics", "size": 1, "dataEnd": 1, "sha256": SHA}]},
        {"files": [{"path": "config/a", "size": 1, "dataEnd": 1, "sha256": "short"}]},
        {"files": [{"path": f"commitlog/{100:020}", "size": 100, "dataEnd": 9, "sha256": SHA}]},
        {"files": [{"path": f"commitlog/{200:020}", "size": 50, "dataEnd": 9, "sha256": SHA}]},
        {"log": None},
        {"settings": []},
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object]) -> None:
    value = orjson.loads(MANIFEST.encode()) | changes
    with pytest.raises(StoreError, match=r"backup\.json cannot be read"):
        Manifest.decode(orjson.dumps(value))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"{}"])
def test_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(StoreError):
        Manifest.decode(content)
