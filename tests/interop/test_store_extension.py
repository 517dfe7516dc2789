"""A store with the consume queues' extension, written here: Java opens it and makes the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyromq.broker.config import load_broker_properties
from pyromq.protocol.message.message_id import encode_host
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from tests.interop.java_programs import javac_or_skip
from tests.interop.store_survey import SETTINGS, differing, java_opens
from tests.support.apache_rocketmq import java_or_skip
from tests.support.stores import put

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

COUNT = 600
#: So small that each queue has units in several files.
EXTENSION = {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "4096"}


def test_java_opens_a_store_with_the_extension(tmp_path: Path) -> None:
    java_or_skip()
    javac_or_skip()
    config = load_broker_properties(
        {**SETTINGS, **EXTENSION, "storePathRootDir": str(tmp_path / "served")}
    ).store
    store = MessageStore(config, encode_host("127.0.0.1", 10911))
    store.start()
    for number in range(COUNT):
        put(store, b"%d" % number, queue_id=number % 2, tags=f"tag{number % 3}")
        store.seal()
    store.stop()
    ours = written_files(config.root)
    assert sum("consumequeue_ext" in name for name in ours) >= 4
    made = Path(shutil.copytree(config.root, tmp_path / "made"))
    for directory in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(made / directory)
    seen = java_opens(tmp_path, config.root, made, **EXTENSION)
    for name in ("served", "made"):
        assert {tuple(limits) for limits in seen[name]["queues"].values()} == {(0, COUNT // 2)}
        assert differing(ours, written_files(tmp_path / name)) == []
    assert list(check_store(config.root, config)) == []


def written_files(root: Path) -> dict[str, bytes]:
    """Queues and their extensions, but for files without an entry, that Java makes ahead."""
    return {
        str(path.relative_to(root)): data
        for path in sorted(root.glob("consumequeue*/*/*/*"))
        if any(data := path.read_bytes())
    }
