from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pyromq.broker.state import offsets as module
from pyromq.broker.state.copied_tables import CopyError
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.protocol.wire.bodies import ConsumerOffsetSerializeWrapper


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(tmp_path)


def test_commit_and_query(offsets: ConsumerOffsetTable) -> None:
    assert offsets.query("g", "t", 0) is None
    offsets.commit("g", "t", 0, 10)
    offsets.commit("g", "t", 1, 0)
    offsets.commit("g", "t", 0, 12)
    assert offsets.query("g", "t", 0) == 12
    assert offsets.query("g", "t", 1) == 0
    assert offsets.query("g", "t", 2) is None
    assert offsets.query("other", "t", 0) is None
    assert offsets.queues("g", "t") == {0: 12, 1: 0}
    assert offsets.queues("g", "absent") == {}


def test_an_offset_that_moves_back_is_logged(
    offsets: ConsumerOffsetTable, caplog: pytest.LogCaptureFixture
) -> None:
    offsets.commit("g", "t", 0, 10)
    with caplog.at_level(logging.WARNING):
        offsets.commit("g", "t", 0, 9, remote_address="10.0.0.1:5")
    assert offsets.query("g", "t", 0) == 9
    assert "offset of t@g queue 0 moved back from 10 to 9 by 10.0.0.1:5" in caplog.text


def test_who_consumes_what(offsets: ConsumerOffsetTable) -> None:
    for topic, group in (("t", "g"), ("t", "h"), ("%RETRY%g", "g")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.topics_of("g") == {"t", "%RETRY%g"}
    assert offsets.groups_of("t") == {"g", "h"}


def test_clone_is_a_copy(offsets: ConsumerOffsetTable) -> None:
    offsets.commit("g", "t", 0, 5)
    offsets.clone("g", "h", "t")
    offsets.clone("absent", "i", "t")
    offsets.commit("g", "t", 0, 6)
    assert offsets.query("h", "t", 0) == 5
    assert offsets.groups_of("t") == {"g", "h"}


def test_remove_group(offsets: ConsumerOffsetTable) -> None:
    for topic, group in (("t", "g"), ("t", "gg"), ("u", "g")):
        offsets.commit(group, topic, 0, 1)
    offsets.remove_group("g")
    assert offsets.topics_of("g") == set()
    assert offsets.topics_of("gg") == {"t"}


@pytest.mark.parametrize("key", ["0", '"0"'])
def test_reads_quoted_and_unquoted_queue_ids(
    offsets: ConsumerOffsetTable, tmp_path: Path, key: str
) -> None:
    text = f'{{\n\t"offsetTable":{{\n\t\t"t@g":{{{key}:10,1:3\n\t\t}}\n\t}}\n}}'
    (tmp_path / "consumerOffset.json").write_text(text)
    offsets.load()
    assert offsets.queues("g", "t") == {0: 10, 1: 3}


def test_writes_the_file_of_rocketmq(offsets: ConsumerOffsetTable, tmp_path: Path) -> None:
    offsets.commit("g", "t", 0, 10)
    offsets.commit("g", "t", 1, 3)
    offsets.save_if_changed()
    saved = (tmp_path / "consumerOffset.json").read_text()
    assert saved == '{"offsetTable":{"t@g":{0:10,1:3}}}'


def test_saves_only_changes(offsets: ConsumerOffsetTable, tmp_path: Path) -> None:
    offsets.save_if_changed()
    assert list(tmp_path.iterdir()) == []
    offsets.commit("g", "t", 0, 10)
    offsets.save_if_changed()
    (tmp_path / "consumerOffset.json").unlink()
    offsets.save_if_changed()
    assert list(tmp_path.iterdir()) == []
    offsets.remove_group("g")
    offsets.save_if_changed()
    assert (tmp_path / "consumerOffset.json").read_text() == '{"offsetTable":{}}'


def test_pairs(offsets: ConsumerOffsetTable) -> None:
    assert list(offsets.pairs()) == []
    offsets.commit("g", "t", 0, 1)
    offsets.commit("g", "t", 1, 1)
    offsets.commit("%h", "u", 0, 1)
    before = offsets.pairs()
    offsets.commit("late", "t", 0, 1)
    assert list(before) == [("t", "g"), ("u", "%h")]
    assert len(list(offsets.pairs())) == 3


def test_names_with_common_prefixes_and_suffixes(offsets: ConsumerOffsetTable) -> None:
    for topic, group in (("t", "g"), ("at", "g"), ("t", "ag"), ("t", "x@g"), ("ta", "g")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.topics_of("g") == {"t", "at", "ta"}
    assert offsets.groups_of("t") == {"g", "ag", "x@g"}


async def test_commits_during_a_save_are_in_the_next(
    offsets: ConsumerOffsetTable, tmp_path: Path
) -> None:
    for offset in range(100):
        offsets.commit("g", "t", 0, offset)
        offsets.save_if_changed()
        await asyncio.sleep(0)
    await offsets.file.close()
    again = ConsumerOffsetTable(tmp_path)
    again.load()
    assert again.query("g", "t", 0) == 99


def test_offsets_are_removed_with_their_topic(offsets: ConsumerOffsetTable) -> None:
    for topic, group in (("t", "g"), ("t", "h"), ("u", "g")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.remove_topic("t") == 2
    assert offsets.remove_topic("t") == 0
    assert list(offsets.pairs()) == [("u", "g")]
    assert offsets.groups_of("t") == offsets.topics_of("h") == set()
    assert offsets.topics_of("g") == {"u"}


def test_offsets_of_unknown_topics_are_removed_at_the_start(
    offsets: ConsumerOffsetTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "consumerOffset.json").write_text(
        '{"offsetTable":{"t@g":{0:1},"gone@g":{0:1},"gone@h":{0:1},"strange":{0:1},'
        '"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:7}}}'
    )
    offsets.load()
    offsets.forget_other_topics({"t"})
    assert dict(offsets.pairs()) == {
        "t": "g",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": "CID_RMQ_SYS_TRANS",
    }
    assert "2 topic and group pairs removed: 1 topics do not exist, such as gone" in caplog.text


def test_a_full_table_takes_no_new_pair(tmp_path: Path) -> None:
    offsets = ConsumerOffsetTable(tmp_path, max_pairs=lambda: 2)
    for group in ("g", "h", "i"):
        offsets.commit(group, "t", 0, 1)
    assert offsets.groups_of("t") == {"g", "h"}
    offsets.commit("g", "t", 1, 5)
    assert offsets.queues("g", "t") == {0: 1, 1: 5}
    offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 3)
    assert offsets.query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 3


def test_a_save_encodes_only_changes(
    offsets: ConsumerOffsetTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        offsets.commit("g", f"t{number}", 0, 1)
    offsets.save_if_changed()
    encoded: list[str] = []

    def note(table: dict[str, dict[int, int]]) -> ConsumerOffsetSerializeWrapper:
        encoded.extend(table)
        return ConsumerOffsetSerializeWrapper(table)

    monkeypatch.setattr(module, "ConsumerOffsetSerializeWrapper", note)
    offsets.commit("g", "t7", 0, 2)
    offsets.remove_topic("t8")
    offsets.save_if_changed()
    assert encoded == ["t7@g"]
    monkeypatch.undo()
    again = ConsumerOffsetTable(tmp_path)
    again.load()
    decode = ConsumerOffsetSerializeWrapper.decode
    assert decode(again.snapshot().encode()) == decode(offsets.snapshot().encode())


def test_snapshots_may_be_encoded_in_any_order(offsets: ConsumerOffsetTable) -> None:
    offsets.commit("g", "t", 0, 1)
    earlier = offsets.snapshot()
    offsets.commit("g", "t", 0, 2)
    offsets.commit("g", "u", 0, 3)
    later = offsets.snapshot()
    offsets.remove_topic("u")
    assert later.encode() == b'{"offsetTable":{"t@g":{0:2},"u@g":{0:3}}}'
    assert earlier.encode() == later.encode(), "an older snapshot has the later changes"
    assert offsets.snapshot().encode() == b'{"offsetTable":{"t@g":{0:2}}}'


def test_a_copy_replaces_its_pairs_and_keeps_the_others(
    offsets: ConsumerOffsetTable, tmp_path: Path
) -> None:
    offsets.commit("g", "t", 0, 10)
    offsets.commit("g", "t", 1, 20)
    offsets.commit("g", "own", 0, 5)
    copy = {"t@g": {0: 7}, "u@h": {3: 4}}
    offsets.take_over(copy)
    assert offsets.queues("g", "t") == {0: 7}, "also back, and without the queue that is gone"
    assert offsets.queues("h", "u") == {3: 4}
    assert offsets.queues("g", "own") == {0: 5}
    assert (offsets.groups_of("u"), offsets.topics_of("h")) == ({"h"}, {"u"})
    copy["t@g"][0] = 99
    assert offsets.query("g", "t", 0) == 7, "the table has its own copy"
    version = offsets.version
    offsets.take_over({"t@g": {0: 7}, "u@h": {3: 4}})
    assert offsets.version == version, "nothing to save"
    offsets.save_if_changed()
    again = ConsumerOffsetTable(tmp_path)
    again.load()
    assert again.queues("h", "u") == {3: 4}


def test_a_copy_with_too_many_pairs_is_refused(tmp_path: Path) -> None:
    offsets = ConsumerOffsetTable(tmp_path, max_pairs=lambda: 2)
    offsets.commit("g", "t", 0, 1)
    offsets.refuse_too_many({"t@g", "u@g"})
    with pytest.raises(CopyError, match="3 pairs of topic and group, limit 2"):
        offsets.refuse_too_many({"t@g", "u@g", "v@g"})
