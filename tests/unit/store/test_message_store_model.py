"""The message store against a plain model of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyromq.protocol.message.record import (
    BLANK_SIZE,
    decode_record,
)
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus, PutError
from tests.support import stores
from tests.support.examples import examples
from tests.support.stores import (
    BORN_HOST,
    TOPIC,
    audit,
    bodies,
    killed_copy,
    open_store,
    properties_of,
    put,
    put_batch,
)

# Against a plain model


class StoreMachine(RuleBasedStateMachine):
    """Any order of puts, batches, seals, gets, restarts and kills, against plain lists."""

    topics = ("TopicA", "TopicB")

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pyromq-model-"))
        self.generation = 0
        self.store = self.opened(self.directory / "0")
        self.sealed: dict[tuple[str, int], list[bytes]] = {}
        self.gathered: list[tuple[tuple[str, int], bytes]] = []

    def opened(self, root: Path) -> MessageStore:
        return open_store(
            root,
            mapped_file_size_commit_log=4096,
            mapped_file_size_consume_queue=60,
            flush_interval_commit_log=1,
            flush_interval_consume_queue=1,
            max_message_size=5000,
        )

    def expected(self, name: tuple[str, int]) -> list[bytes]:
        return self.sealed.get(name, []) + [body for at, body in self.gathered if at == name]

    def model_seal(self) -> None:
        for name, body in self.gathered:
            self.sealed.setdefault(name, []).append(body)
        self.gathered.clear()

    names = st.tuples(st.sampled_from(topics), st.integers(0, 1))
    some_bodies = st.one_of(st.binary(max_size=60), st.integers(0, 4200).map(lambda n: b"z" * n))

    @rule(name=names, body=some_bodies, tags=st.sampled_from(["", "TagA", "Grüße"]))
    def put(self, name: tuple[str, int], body: bytes, tags: str) -> None:
        size = self.store.queue(*name).fixed_size + len(body) + len(properties_of(tags, "k"))
        if size > 4096 - BLANK_SIZE:
            with pytest.raises(PutError):
                put(self.store, body, topic=name[0], queue_id=name[1], tags=tags, keys="k")
            return
        put(self.store, body, topic=name[0], queue_id=name[1], tags=tags, keys="k")
        self.gathered.append((name, body))

    @rule(name=names, some=st.lists(st.binary(max_size=200), min_size=1, max_size=9))
    def put_batch(self, name: tuple[str, int], some: list[bytes]) -> None:
        put_batch(self.store, some, topic=name[0], queue_id=name[1], tags="B", properties=b"C\x01d")
        self.gathered += [(name, body) for body in some]

    @rule()
    def seal(self) -> None:
        self.store.seal()
        self.model_seal()

    @rule(name=names, offset=st.integers(-2, 40), count=st.integers(-1, 40))
    def get(self, name: tuple[str, int], offset: int, count: int) -> None:
        expected = self.expected(name)
        result = self.store.get(*name, offset, count)
        self.model_seal()
        if 0 <= offset < len(expected):
            assert result.status is GetStatus.FOUND
            found = log_bodies(b"".join(result.pieces))
            assert 1 <= len(found) <= max(1, count)
            assert found == expected[offset : offset + len(found)]
            assert result.next_offset == offset + len(found)
        else:
            assert result.status is not GetStatus.FOUND
            assert result.count == 0

    @rule()
    def restart(self) -> None:
        self.store.stop()
        self.model_seal()
        self.store = self.opened(self.store.config.root)

    @precondition(lambda self: self.generation < 6)
    @rule(torn=st.binary(max_size=100))
    def kill(self, torn: bytes) -> None:
        """Only what was sealed is there afterwards, whatever stands behind it."""
        self.store.seal()
        self.model_seal()
        self.generation += 1
        end = self.store.max_physical_offset
        copy = killed_copy(self.store, self.directory / str(self.generation))
        self.store.stop()
        shutil.rmtree(self.store.config.root)
        last = copy / "commitlog" / f"{end - end % 4096:020d}"
        if last.exists():
            with last.open("r+b") as file:
                file.seek(end % 4096)
                file.write(torn[: 4096 - end % 4096])
        self.store = self.opened(copy)
        assert self.store.max_physical_offset == end

    @invariant()
    def ends_agree(self) -> None:
        for topic in self.topics:
            for queue_id in (0, 1):
                name = (topic, queue_id)
                assert self.store.max_offset(*name) == len(self.expected(name))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self.model_seal()
            records = audit(self.store)
            assert len(records) == sum(len(some) for some in self.sealed.values())
            for name, expected in self.sealed.items():
                assert bodies(self.store, *name) == expected
        finally:
            self.store.stop()
            shutil.rmtree(self.directory)


def log_bodies(data: bytes) -> list[bytes]:
    found = []
    while data:
        record = decode_record(data)
        found.append(record.body)
        data = data[record.size :]
    return found


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("born_host", [BORN_HOST, stores.BORN_HOST_V6])
def test_store_times_by_place(tmp_path: Path, born_host: bytes) -> None:
    store = open_store(tmp_path)
    physical = put(store, b"x", born_host=born_host)
    assert store.store_time(physical) is None, "it is not sealed yet"
    store.seal()
    data = store.read_record(physical)
    assert data is not None
    assert store.store_time(physical) == decode_record(data).store_timestamp
    assert store.store_time(physical + len(data)) is None
    store.stop()


def test_queues_are_found_and_not_made(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.find_queue(TOPIC, 0) is None
    assert list(store.queues()) == []
    put(store, b"x")
    found = store.find_queue(TOPIC, 0)
    assert found is not None
    assert found is store.queue(TOPIC, 0)
    store.stop()
