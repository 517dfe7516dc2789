from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.client.consumer.offsets import LocalOffsets, OffsetFile, RemoteOffsets
from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.errors import OptionError
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.unit.client.fake_cluster import running_cluster, running_pair
from tests.unit.client.sessions import session_at

FIRST, SECOND = (MessageQueue("t", "b0", number) for number in range(2))


async def test_changed_offsets_are_committed(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        session_at(cluster.namesrv) as session,
    ):
        broker = cluster.brokers[0]
        offsets = RemoteOffsets(QueueAccess(session, "g"))
        assert await offsets.load(FIRST) is None
        broker.offsets["g", "t", 1] = 9
        assert await offsets.load(SECOND) == 9
        await offsets.store({FIRST: 4, SECOND: 9})
        assert broker.offsets == {("g", "t", 0): 4, ("g", "t", 1): 9}
        assert len(broker.seen(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
        offsets.forget(SECOND)
        await offsets.store({FIRST: 4, SECOND: 9})
        assert len(broker.seen(RequestCode.UPDATE_CONSUMER_OFFSET)) == 2
        # A failed commit is retried by the next call.
        broker.refusals[RequestCode.UPDATE_CONSUMER_OFFSET] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        await offsets.store({FIRST: 5})
        assert "offset 5 of" in caplog.text
        await offsets.store({FIRST: 5})
        assert broker.offsets["g", "t", 0] == 5


async def test_broadcasting_stores_offsets_in_a_file(tmp_path: Path) -> None:
    async with session_at(
        "127.0.0.1:1", namespace="tenant", client_ip="10.0.0.1", instance_name="DEFAULT"
    ) as session:
        offsets = LocalOffsets(session, "g", tmp_path)
        assert offsets.path == tmp_path / "10.0.0.1@DEFAULT" / "tenant%g" / "offsets.json"
        assert await offsets.load(FIRST) is None
        await offsets.store({FIRST: 3})
        await offsets.store({FIRST: 4, SECOND: 1})
        await offsets.store({SECOND: 1})
        offsets.forget(SECOND)
        assert await offsets.load(SECOND) == 1
        table = OffsetFile.decode(offsets.path.read_bytes()).offset_table
        assert table == {
            MessageQueue("tenant%t", "b0", 0): 4,
            MessageQueue("tenant%t", "b0", 1): 1,
        }
        again = LocalOffsets(session, "g", tmp_path)
        assert await again.load(FIRST) == 4
        # A truncated file: fall back to the backup.
        offsets.path.write_bytes(offsets.path.read_bytes()[:10])
        again = LocalOffsets(session, "g", tmp_path)
        assert (await again.load(FIRST), await again.load(SECOND)) == (3, None)


async def test_a_failed_write_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_the_way = tmp_path / "place"
    in_the_way.write_text("a file, not a directory")
    async with session_at("127.0.0.1:1") as session:
        offsets = LocalOffsets(session, "g", in_the_way)
        assert await offsets.load(FIRST) is None
        await offsets.store({FIRST: 3})
        assert "offsets not written" in caplog.text
        in_the_way.unlink()
        await offsets.store({FIRST: 3})
        assert await LocalOffsets(session, "g", in_the_way).load(FIRST) == 3


async def test_no_two_consumers_share_a_file(tmp_path: Path) -> None:
    async with (
        session_at("127.0.0.1:1", client_ip="10.0.0.1", instance_name="DEFAULT") as one,
        session_at("127.0.0.1:1", client_ip="10.0.0.1", instance_name="DEFAULT") as two,
        session_at("127.0.0.1:1", client_ip="10.0.0.1", instance_name="DEFAULT") as three,
    ):
        first, second = (LocalOffsets(session, "g", tmp_path) for session in (one, two))
        elsewhere = LocalOffsets(three, "another group", tmp_path)
        for offsets in (first, second, elsewhere):
            await offsets.open()
            await offsets.open()
        assert first.path == tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
        assert second.path == tmp_path / "10.0.0.1@DEFAULT-2" / "g" / "offsets.json"
        assert two.client_id == "10.0.0.1@DEFAULT-2"
        assert elsewhere.path.parent.parent.name == three.client_id == "10.0.0.1@DEFAULT"
        await first.store({FIRST: 9})
        await second.store({FIRST: 2})
        # While the first one runs, the second gets its own offsets back.
        second.close()
        async with session_at(
            "127.0.0.1:1", client_ip="10.0.0.1", instance_name="DEFAULT"
        ) as restarted:
            again = LocalOffsets(restarted, "g", tmp_path)
            await again.open()
            assert await again.load(FIRST) == 2
            again.close()
        first.close()
        elsewhere.close()


async def test_a_used_instance_name_is_refused(tmp_path: Path) -> None:
    async with (
        session_at("127.0.0.1:1", client_ip="10.0.0.1", instance_name="w1") as one,
        session_at("127.0.0.1:1", client_ip="10.0.0.1", instance_name="w1") as two,
    ):
        first, second = (LocalOffsets(session, "g", tmp_path) for session in (one, two))
        await first.open()
        with pytest.raises(OptionError, match=r"instance_name='w1' is in use: process \d+ .*'g'"):
            await second.open()
        first.close()
        await second.open()
        with pytest.raises(OptionError, match="'w1' is in use"):
            await LocalOffsets(one, "g", tmp_path).open()
        second.close()


async def test_a_file_that_cannot_be_locked_is_used_anyway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    async with session_at("127.0.0.1:1", instance_name="DEFAULT") as session:
        offsets = LocalOffsets(session, "g", tmp_path / "file")
        await offsets.open()
        assert "set a different instance_name for each consumer of group g" in caplog.text
        await offsets.store({FIRST: 1})
        offsets.close()


async def test_a_commit_is_repeated_until_a_master_has_it() -> None:
    """Also if nothing is consumed meanwhile: a replica loses it when its master returns."""
    queue = MessageQueue("t", "b1", 0)
    async with (
        running_pair({"t": {"b1": 1}}) as (cluster, master, replica),
        session_at(cluster.namesrv) as session,
    ):
        offsets = RemoteOffsets(QueueAccess(session, "g"))
        await offsets.store({queue: 3})
        master.is_listed = False
        await session.routes.refresh("t")
        for _ in range(2):
            await offsets.store({queue: 4})
        assert len(replica.seen(RequestCode.UPDATE_CONSUMER_OFFSET)) == 2
        master.is_listed = True
        for _ in range(2):
            await offsets.store({queue: 4})
        assert master.offsets["g", "t", 0] == 4
        assert len(master.seen(RequestCode.UPDATE_CONSUMER_OFFSET)) == 2
