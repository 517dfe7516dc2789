"""SIGKILL at random moments: what was acknowledged is there, once, at its place, intact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyromq.protocol.message.record import MessageRecord
from pyromq.store.message_store import MessageStore
from tests.crash.writer import QUEUES, SETTINGS, Told, body_of
from tests.support.stores import audit, open_store, read_all

ROUNDS = 5
REPOSITORY = Path(__file__).parents[2]


def run_and_kill(
    directory: Path, first_number: int, chooser: random.Random, *options: str
) -> list[Told]:
    """Start a writer, kill it within a moment; what it had told by then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.writer", str(directory), str(first_number), *options],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    output = process.stdout
    assert output is not None
    try:
        assert output.readline() == b"ready\n"
        lines = [output.readline()]
        until = time.monotonic() + chooser.uniform(0.0, 0.12)
        while time.monotonic() < until:
            lines.append(output.readline())
        process.send_signal(signal.SIGKILL)
        lines += output.readlines()
    finally:
        process.kill()
        process.wait(60)
        output.close()
    assert process.returncode == -signal.SIGKILL
    told = []
    for line in lines:
        if line.endswith(b"\n"):
            for message in line.decode().split():
                topic, *numbers = message.split(",")
                told.append(Told(topic, *map(int, numbers)))
    return told


def check(store: MessageStore, told: list[Told]) -> None:
    """Log, queues and index agree, and every acknowledged message is where it was told."""
    records = audit(store)
    by_number: dict[int, MessageRecord] = {}
    for record in records:
        number = int(record.body.partition(b":")[0])
        assert number not in by_number, "stored twice"
        assert record.body == body_of(number)
        by_number[number] = record
    for message in told:
        record = by_number[message.number]
        assert message == Told(
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            message.number,
        )
    for topic, queue_id in QUEUES:
        pulled = read_all(store, topic, queue_id)
        assert [record.queue_offset for record in pulled] == list(range(len(pulled)))


@pytest.mark.parametrize("seed", [1])
def test_acknowledged_messages_survive_kills(tmp_path: Path, seed: int) -> None:
    chooser = random.Random(seed)
    told: list[Told] = []
    for round_number in range(ROUNDS):
        told += run_and_kill(tmp_path, round_number * 10_000_000, chooser)
        if round_number % 2:
            continue  # the next writer finds what the kill left
        store = open_store(tmp_path, **SETTINGS)
        try:
            check(store, told)
        finally:
            store.stop()
    assert len(told) > 100
