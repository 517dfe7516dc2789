"""Parts of a log, decoded in any order: what is joined of them is what one walk makes."""

from __future__ import annotations

import random
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import decode_record, encode_record
from pyromq.store.config import MessageStoreConfig
from pyromq.store.offline.check import guess_config
from pyromq.store.offline.log_parts import (
    assemble_index_file,
    assemble_queues,
    decode_part,
    index_spans,
    join_parts,
    plan_parts,
)
from pyromq.store.offline.rebuild import Targets, put_in_place, rebuild_store
from pyromq.store.results import StoreError
from tests.golden.test_store import STORES, GoldenStore
from tests.support.stores import BORN_HOST, BORN_HOST_V6, SEGMENT, open_store, put, small_config
from tests.unit.store.offline.test_rebuild import derived

PART = 1500
GROUPS = 3


def rebuild_in_parts(config: MessageStoreConfig, part_size: int = PART) -> int:
    """Do it as tasks would, in any order; returns where the log ends."""
    scratch = config.root / "parts"
    targets = Targets.beside(config)
    targets.make()
    parts = plan_parts(config, part_size)
    order = list(range(len(parts)))
    random.Random(7).shuffle(order)
    found = {number: decode_part(config, parts[number], scratch) for number in order}
    decoded = [found[number] for number in range(len(parts))]
    log_end, used = join_parts(config, parts, decoded, scratch)
    begin = parts[0].start if parts else 0
    for group in range(GROUPS):
        assemble_queues(config, targets, used, group, GROUPS, begin)
    for span in reversed(index_spans(config, used, datetime(2026, 1, 2))):
        assemble_index_file(config, targets, used, span)
    put_in_place(config, targets)
    shutil.rmtree(scratch)
    return log_end


def both_ways(root: Path, config: MessageStoreConfig, part_size: int = PART) -> int:
    """Check that parts make the files that one walk makes; returns where the log ends."""
    made = rebuild_store(config)
    expected = derived(root)
    log_end = rebuild_in_parts(config, part_size)
    assert derived(root) == expected
    assert log_end == made.log_end
    assert not list(root.glob("*.rebuilt*"))
    return log_end


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "store")
    for number in range(400):
        put(
            store,
            b"%04d" % number * (number % 90),
            topic=f"Topic{number % 5}",
            queue_id=number % 3,
            tags=f"tag{number % 2}",
            keys=" ".join(f"k{number}-{key}" for key in range(number % 3)),
            born_host=BORN_HOST if number % 4 else BORN_HOST_V6,
        )
        store.seal()
    store.stop()
    return store.config.root


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("part_size", [300, 1 << 20])
def test_what_java_made_is_made_byte_for_byte(name: str, part_size: int, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path / "store")
    before = golden.derived_files()
    shutil.rmtree(golden.root / "consumequeue")
    shutil.rmtree(golden.root / "index")
    assert rebuild_in_parts(golden.config(), part_size) == golden.index["maxOffset"]
    assert golden.derived_files() == before


@pytest.mark.parametrize("part_size", [50, 700, SEGMENT])
def test_parts_of_any_size_make_the_same(root: Path, part_size: int) -> None:
    both_ways(root, small_config(root), part_size)


@pytest.mark.parametrize("messages", [1, 62, 63, 64])
@pytest.mark.parametrize("is_followed", [False, True])
def test_index_files_end_where_java_ends_them(
    tmp_path: Path, messages: int, is_followed: bool
) -> None:
    store = open_store(tmp_path / "store")
    for number in range(messages):
        put(store, b"x", keys=f"k{number}")
    if is_followed:
        put(store, b"a record without keys")
    store.seal()
    store.stop()
    both_ways(store.config.root, small_config(store.config.root))


def test_the_log_ends_at_damage(root: Path) -> None:
    config = small_config(root)
    whole = both_ways(root, config)
    segment = sorted((root / "commitlog").iterdir())[0]
    data = bytearray(segment.read_bytes())
    data[30_000:30_020] = b"damage that is long!"
    segment.write_bytes(data)
    assert both_ways(root, config) <= 30_020 < whole


def test_damage_at_the_beginning_of_a_part(root: Path) -> None:
    config = small_config(root)
    data = sorted((root / "commitlog").iterdir())[0]
    content = bytearray(data.read_bytes())
    position = 0
    while position < 2 * PART:
        position += decode_record(bytes(content), position).size
    content[position + 4] ^= 1
    data.write_bytes(content)
    assert both_ways(root, config) == position


def test_a_body_that_looks_like_a_record(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    first = put(store, b"first", topic="Topic", keys="a")
    store.seal()
    data = store.read_record(first)
    assert data is not None
    record = decode_record(data)
    # The body begins behind the head; what stands there says that it is of that very place.
    place = store.max_physical_offset + 88
    record.physical_offset = place
    host = encode_host("127.0.0.1", 10911)
    false = encode_record(record, host, host)
    put(store, false + b"x" * 4000, topic="Topic")
    put(store, b"last", topic="Topic")
    store.seal()
    store.stop()
    config = small_config(store.config.root)
    assert place < PART
    for part_size in (place - 10, place, PART):
        both_ways(store.config.root, config, part_size)


def test_a_topic_that_was_made_anew(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for _ in range(2):
        for number in range(20):
            put(store, b"x" * 90, topic="Again", queue_id=number % 2, keys="k")
            put(store, b"y", topic="Other")
        store.seal()
        store.remove_topic("Other")
    store.stop()
    both_ways(store.config.root, small_config(store.config.root))


def test_a_log_whose_head_has_expired(root: Path) -> None:
    sorted((root / "commitlog").iterdir())[0].unlink()
    both_ways(root, small_config(root))
    assert (root / "consumequeue" / "Topic0").is_dir()


def test_a_log_with_a_hole_is_refused(root: Path) -> None:
    first = root / "commitlog" / f"{0:020d}"
    shutil.copy(first, first.with_name(f"{5 * SEGMENT:020d}"))
    with pytest.raises(StoreError, match="does not follow"):
        plan_parts(small_config(root))
    with pytest.raises(StoreError, match="no log found"):
        plan_parts(guess_config(root / "nowhere"))


def test_what_was_never_written_is_no_part(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", mapped_file_size_commit_log=64 * 1024 * 1024)
    put(store, b"x" * 90, keys="k")
    store.seal()
    store.stop()
    config = small_config(store.config.root, mapped_file_size_commit_log=64 * 1024 * 1024)
    whole = len(plan_parts(config, 1 << 20))
    # File systems that know no holes have all of it.
    assert whole in range(1, 65)
    assert both_ways(store.config.root, config, 1 << 20) == store.max_physical_offset
    segment = config.commit_log_directory / f"{0:020d}"
    record = segment.read_bytes()[: store.max_physical_offset]
    segment.write_bytes(record.ljust(64 * 1024 * 1024, b"\0"))
    assert len(plan_parts(config, 1 << 20)) == 64
    assert both_ways(store.config.root, config, 1 << 20) == len(record)


def test_extensions_are_made_too(tmp_path: Path) -> None:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4096}
    store = open_store(tmp_path / "store", **settings)
    for number in range(100):
        put(store, b"x" * 100, queue_id=number % 2, tags=f"t{number}")
    store.seal()
    store.stop()
    root = store.config.root
    config = small_config(root, **settings)
    rebuild_store(config)
    before = {path: path.read_bytes() for path in sorted(root.rglob("consumequeue_ext/*/*/*"))}
    assert before
    both_ways(root, config)
    assert {path: path.read_bytes() for path in before} == before


def test_a_task_may_run_twice(root: Path) -> None:
    config = small_config(root)
    scratch = root / "parts"
    parts = plan_parts(config, PART)
    decoded = [decode_part(config, part, scratch) for part in parts]
    assert [decode_part(config, part, scratch) for part in parts] == decoded
    targets = Targets.beside(config)
    targets.make()
    _, used = join_parts(config, parts, decoded, scratch)
    once = assemble_queues(config, targets, used, 0, 1, 0)
    assert assemble_queues(config, targets, used, 0, 1, 0) == once == (15, 400)
    [*spans] = index_spans(config, used, datetime(2026, 1, 2))
    for span in (*spans, *spans):
        assemble_index_file(config, targets, used, span)
    assert targets.index is not None
    assert len(list(targets.index.iterdir())) == len(spans) > 2
