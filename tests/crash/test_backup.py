"""Backups of a broker under load, restored elsewhere; kills in the middle of both."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.wire.bodies import ConsumerOffsetSerializeWrapper
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.backup.repository import Repository
from pyromq.store.backup.source import StoreSource
from pyromq.store.config import MessageStoreConfig
from tests.support.crash import (
    QUEUES,
    SETTINGS,
    Acknowledged,
    BrokerProcess,
    Load,
    Verifier,
    check_wire,
    until_more_than,
)
from tests.support.patience import DEADLINE
from tests.support.stores import log_records, open_store, put

#: Expired segments go at once.
EXPIRING: dict[str, Any] = {
    "fileReservedTime": 0,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": 20,
    "deleteCommitLogFilesInterval": 1,
}


async def pyromq(*arguments: str, code: int = 0) -> str:
    """Run a command and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pyromq", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == code, (output + errors).decode()
    return (output if code == 0 else errors).decode()


async def back_up(store: Path, target: Path, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        await pyromq("store", "backup", str(store), "--to", str(target), "--json", *options)
    )
    return made


async def restored(backup: str, target: Path, *options: str) -> None:
    await pyromq("store", "restore", backup, str(target), *options)
    await pyromq("store", "check", str(target))


async def commit_offsets(address: str, acknowledged: list[Acknowledged]) -> None:
    """Commit the newest acknowledged offset of each queue for a group."""
    ends: dict[tuple[str, int], int] = {}
    for message in acknowledged:
        key = message.topic, message.queue_id
        ends[key] = max(ends.get(key, 0), message.offset + 1)
    client = RemotingClient()
    try:
        for (topic, queue_id), offset in ends.items():
            fields = {
                "consumerGroup": "billing",
                "topic": topic,
                "queueId": str(queue_id),
                "commitOffset": str(offset),
            }
            answer = await client.request(
                address,
                RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields),
                DEADLINE,
            )
            assert answer.code == ResponseCode.SUCCESS
    finally:
        await client.close()


def committed_offsets(store: Path) -> dict[str, dict[int, int]]:
    content = (store / "config/consumerOffset.json").read_bytes()
    offsets = ConsumerOffsetSerializeWrapper.decode(content).offset_table
    return {pair: queues for pair, queues in offsets.items() if pair.endswith("@billing")}


async def test_backups_under_load_hold_everything_that_was_acknowledged(tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    broker = await BrokerProcess.start(data, flushConsumerOffsetInterval=100)
    load = Load(7)
    sending = asyncio.create_task(load.run(broker.address, connections=1, in_flight=1))
    snapshots: list[tuple[dict[str, Any], list[Acknowledged]]] = []
    try:
        for round_ in range(3):
            await until_more_than((round_ + 1) * 800, load.acknowledged, sending)
            before = list(load.acknowledged)
            await commit_offsets(broker.address, before)
            snapshots.append((await back_up(data, backups, "--verify"), before))
    finally:
        load.goal = 0
        await sending
        await broker.kill()
    made = [backup for backup, _ in snapshots]
    assert made[0]["linked"] == 0
    segment = SETTINGS["mappedFileSizeCommitLog"]
    for earlier, later in itertools.pairwise(made):
        # All full segments of the earlier one are linked.
        assert later["linked"] >= earlier["logEnd"] // segment * segment > 0
        assert later["source"]["running"]
    # The second one survives the removal of the first.
    await pyromq("store", "backups", "prune", str(backups), "--keep", "2")
    for backup, before in snapshots[1:2]:
        target = tmp_path / "restored"
        await restored(backup["directory"], target)
        ends = StoreSource(MessageStoreConfig(store_path_root_dir=str(target))).queue_ends()
        offsets = committed_offsets(target)
        assert offsets
        for pair, queues in offsets.items():
            for queue_id, offset in queues.items():
                assert 0 < offset <= ends.next_offsets[pair.partition("@")[0]][queue_id]
        again = await BrokerProcess.start(target)
        try:
            await check_wire(again.address, before)
            # It takes new messages.
            more = Load(8)
            more.goal = 50
            await more.run(again.address)
        finally:
            await again.kill(signal.SIGTERM)
        await pyromq("store", "check", str(target))


async def test_backups_while_segments_expire(tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    broker = await BrokerProcess.start(data, **EXPIRING)
    load = Load(9)
    sending = asyncio.create_task(load.run(broker.address, connections=1, in_flight=1))
    snapshots: list[tuple[dict[str, Any], list[Acknowledged]]] = []
    try:
        for round_ in range(2):
            await until_more_than((round_ + 1) * 1600, load.acknowledged, sending)
            before = list(load.acknowledged)
            snapshots.append((await back_up(data, backups), before))
    finally:
        load.goal = 0
        await sending
        await broker.kill()
    assert snapshots[-1][0]["logBegin"] > 0
    for number, (backup, before) in enumerate(snapshots):
        target = tmp_path / f"restored-{number}"
        await restored(backup["directory"], target)
        begin = backup["logBegin"]
        verifier = Verifier([message for message in before if message.physical >= begin])
        store = open_store(target, **{**small_sizes(), "file_reserved_time": 1000})
        try:
            ends = {key: store.max_offset(*key) for key in QUEUES}
            for record in log_records(store):
                verifier.take(record)
        finally:
            store.stop()
        verifier.finish()
        # Queues whose messages have all expired continue where they ended.
        for message in before:
            assert ends[message.topic, message.queue_id] > message.offset


def small_sizes() -> dict[str, int]:
    return {
        "mapped_file_size_commit_log": SETTINGS["mappedFileSizeCommitLog"],
        "mapped_file_size_consume_queue": SETTINGS["mappedFileSizeConsumeQueue"],
        "max_hash_slot_num": SETTINGS["maxHashSlotNum"],
        "max_index_num": SETTINGS["maxIndexNum"],
        "max_msgs_num_batch": 1000,
    }


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store of many small segments."""
    store = open_store(tmp_path / "data", mapped_file_size_commit_log=256 * 1024)
    for number in range(3000):
        put(store, b"%d " % number * 400, queue_id=number % 4, keys=f"k{number}")
        store.seal()
    store.stop()
    return tmp_path / "data"


def kill_when(path: Path, pattern: str, count: int, *arguments: str) -> None:
    """Run a command, and kill it when that many files exist."""
    with subprocess.Popen(
        [sys.executable, "-m", "pyromq", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + DEADLINE
        while len(list(path.glob(pattern))) < count:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)


async def test_a_backup_that_is_killed_leaves_the_others_and_is_resumed(
    filled: Path, tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    first = await back_up(filled, backups)
    repository = Repository(backups)
    for path in list(backups.glob("*Z")):
        path.rename(tmp_path / path.name)  # so that there is something to copy
    arguments = ("store", "backup", str(filled), "--to", str(backups), "--max-mb-per-second", "4")
    kill_when(backups, "*.partial/commitlog/" + "[0-9]" * 20, 3, *arguments)
    (partial,) = repository.leftovers()
    assert not repository.backups()
    again = await back_up(filled, backups, "--verify")
    assert again["linked"] >= 2 * 256 * 1024
    assert not repository.leftovers()
    assert not partial.exists()
    assert again["logEnd"] == first["logEnd"]
    await restored(again["directory"], tmp_path / "restored")


async def test_a_restore_that_is_killed_is_resumed(filled: Path, tmp_path: Path) -> None:
    backups, target = tmp_path / "backups", tmp_path / "restored"
    await back_up(filled, backups)
    arguments = ("store", "restore", str(backups), str(target), "--max-mb-per-second", "4")
    kill_when(target, "commitlog/" + "[0-9]" * 20, 3, *arguments)
    refused = await pyromq("store", "rebuild", str(target), code=1)
    assert "a restore was interrupted" in refused
    await restored(str(backups), target)
    assert not (target / "restoring").exists()
    store = open_store(target, mapped_file_size_commit_log=256 * 1024, max_msgs_num_batch=1000)
    try:
        assert len(log_records(store)) == 3000
    finally:
        store.stop()
