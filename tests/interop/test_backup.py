"""Java's broker opens a store that was restored from the backup of a running pyromq broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.main import main
from tests.interop.raw_broker import seeds
from tests.interop.test_store_exchange import apache, connected, filled, pyromq, running
from tests.support.apache_rocketmq import java_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def command(*arguments: object) -> None:
    result = CliRunner().invoke(main, ["store", *map(str, arguments)])
    assert result.exit_code == 0, result.output


async def test_java_serves_a_restored_store(tmp_path: Path, namesrv: str) -> None:
    java_or_skip()
    store, target = tmp_path / "store", tmp_path / "restored"
    sent = seeds("first", 6)
    with running(pyromq(store, namesrv)) as server:
        before = await filled(server, sent)
        command("backup", store, "--to", tmp_path / "backups", "--verify")
    shutil.rmtree(store)
    command("restore", tmp_path / "backups", target)
    with running(apache(target, namesrv)) as server:
        async with connected(server) as broker:
            after = await broker.snapshot(sent)
            # Offsets are written every five seconds: the backup may lack the last ones.
            after.consumed = before.consumed
            assert after == before
            more = seeds("second", 2)
            for seed in more:
                answer = await broker.send(seed)
                _, end = before.limits[seed.topic, seed.queue_id]
                assert answer.queue_offset >= end
        server.kill()
    command("rebuild", target)
    command("check", target)
    shutil.rmtree(target)
