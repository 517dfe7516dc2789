"""A raft group that is restored from the backup of one running node."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

from pyromq.client import Message
from pyromq.raft.offline.backup import complete_node, raft_node_of
from pyromq.store.backup.making import back_up
from pyromq.store.backup.repository import Repository
from pyromq.store.backup.restoring import restore_backup, settings_for
from tests.integration.test_raft import stored
from tests.support.patience import until
from tests.support.raft_brokers import RaftBrokers


async def test_a_group_is_restored_from_one_node(tmp_path: Path) -> None:
    group = await RaftBrokers(tmp_path / "old").start()
    bodies = [b"message %d" % number for number in range(200)]
    try:
        async with group.producer() as producer:
            await asyncio.gather(*(group.sent(producer, Message("T", body)) for body in bodies))
            store = group.brokers[await group.leader()].store
            assert store is not None
            config = store.config
            backup = await asyncio.to_thread(
                lambda: (
                    back_up(
                        config, Repository(tmp_path / "backups"), raft_node=raft_node_of(config)
                    ).backup
                )
            )
    finally:
        await group.stop()
    again = RaftBrokers(tmp_path / "new")
    for node in again.ids:
        settings = settings_for(
            backup,
            tmp_path / "new" / node,
            {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "group",
                "dLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3",
                "dLegerSelfId": node,
            },
        )
        restore_backup(
            backup,
            settings,
            complete_raft=partial(complete_node, settings, backup.manifest, must_catch_up=False),
        )
    shutil.rmtree(tmp_path / "old")
    try:
        await again.start()
        async with again.producer() as producer:
            await again.sent(producer, Message("T", b"new"))
        await again.settled()
        for node in again.ids:
            assert sorted(stored(again, node)) == sorted([*bodies, b"new"])
    finally:
        await again.stop()


async def test_a_node_is_restored_into_its_running_group(tmp_path: Path) -> None:
    group = await RaftBrokers(tmp_path / "group").start()
    try:
        async with group.producer() as producer:
            for number in range(50):
                await group.sent(producer, Message("T", b"old %d" % number))
            await group.settled()
            node = (await group.followers())[0]
            store = group.brokers[node].store
            assert store is not None
            config = store.config
            backup = await asyncio.to_thread(
                lambda: (
                    back_up(
                        config, Repository(tmp_path / "backups"), raft_node=raft_node_of(config)
                    ).backup
                )
            )
            for number in range(50):
                await group.sent(producer, Message("T", b"new %d" % number))
            await group.brokers.pop(node).stop()
            shutil.rmtree(config.root)
            restore_backup(
                backup,
                config,
                complete_raft=partial(complete_node, config, backup.manifest, must_catch_up=True),
            )
            await group.start_broker(node)
            await group.settled()
            await until(lambda: not group.log(node).must_catch_up)
            assert len(stored(group, node)) == 100
    finally:
        await group.stop()
