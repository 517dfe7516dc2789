"""A store that was restored from the backup of a running broker, opened by the other system."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.main import main
from tests.interop.raw_broker import seeds
from tests.interop.test_store_exchange import (
    Starter,
    apache,
    connected,
    filled,
    pyromq,
    running,
)
from tests.support.apache_rocketmq import java_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def command(*arguments: object) -> None:
    result = CliRunner().invoke(main, ["store", *map(str, arguments)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(pyromq, apache, id="pyromq-to-apache"),
        pytest.param(apache, pyromq, id="apache-to-pyromq", marks=pytest.mark.soak),
    ],
)
async def test_a_restored_store_is_served_by_the_other(
    first: Starter, second: Starter, tmp_path: Path, namesrv: str
) -> None:
    java_or_skip()
    store, target = tmp_path / "store", tmp_path / "restored"
    sent = seeds("first", 6)
    with running(first(store, namesrv)) as server:
        before = await filled(server, sent)
        command("backup", store, "--to", tmp_path / "backups", "--verify")
    shutil.rmtree(store)
    command("restore", tmp_path / "backups", target)
    command("check", target)
    with running(second(target, namesrv)) as server:
        async with connected(server) as broker:
            after = await broker.snapshot(sent)
            # Offsets are written every five seconds: the backup may lack the last ones.
            after.consumed = before.consumed
            assert after == before
            for seed in seeds("second", 2):
                answer = await broker.send(seed)
                _, end = before.limits[seed.topic, seed.queue_id]
                assert answer.queue_offset >= end
    shutil.rmtree(target)
