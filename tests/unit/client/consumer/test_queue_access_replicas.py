"""Requests about queues of a master and its replica, as the master goes and returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyromq.client.consumer import queue_access as queue_access_module
from pyromq.client.consumer.queue_access import PullResult, PullStatus, QueueAccess
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import NoMasterError
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.session import away as away_module
from pyromq.client.session.session import Session
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import PullMessageResponseHeader
from pyromq.remoting.errors import RemotingConnectError, RemotingTimeoutError
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster, running_pair

QUEUE = MessageQueue("t", "b1", 0)
PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


class Pair:
    """A master with three messages, its replica, and requests to both."""

    def __init__(
        self,
        cluster: FakeCluster,
        master: FakeBroker,
        replica: FakeBroker,
        session: Session,
        access: QueueAccess,
    ) -> None:
        self.cluster = cluster
        self.master = master
        self.replica = replica
        self.session = session
        self.access = access

    async def pull(self, offset: int = 0, commit: int | None = None) -> PullResult:
        return await self.access.pull(QUEUE, offset, Subscription(), commit_offset=commit)

    async def unlist_master(self) -> None:
        """Let the NameServers drop the master, and the client know."""
        self.master.is_listed = False
        await self.session.routes.refresh("t")

    async def list_master(self) -> None:
        self.master.is_listed = True
        await self.session.routes.refresh("t")


@asynccontextmanager
async def running(options: ClientOptions | None = None) -> AsyncIterator[Pair]:
    async with running_pair({"t": {"b1": 1}}) as (cluster, master, replica):
        for number in range(3):
            await master.put("t", 0, b"%d" % number)
        session = Session(
            Settings.of(cluster.namesrv, options or {}),
            HeartbeatData,
            on_return=lambda address: access.broker_returned(address),
        )
        access = QueueAccess(session, "g")
        session.start()
        try:
            yield Pair(cluster, master, replica, session, access)
        finally:
            await session.close()


def suggest(monkeypatch: pytest.MonkeyPatch, broker: FakeBroker, broker_id: int) -> None:
    """Let a broker suggest from where to pull next."""
    plain = broker._pulled

    def pulled(*args: object, **kwargs: object) -> RemotingCommand:
        answer = plain(*args, **kwargs)  # type: ignore[arg-type]
        answer.ext_fields["suggestWhichBrokerId"] = str(broker_id)
        return answer

    monkeypatch.setattr(broker, "_pulled", pulled)


async def test_pulls_follow_the_suggestion_and_return(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as pair:
        with monkeypatch.context() as patch:
            suggest(patch, pair.master, 1)
            await pair.pull()
        assert len((await pair.pull()).messages) == 3
        assert (len(pair.master.seen(PULL)), len(pair.replica.seen(PULL))) == (1, 1)
        await pair.pull()  # the replica suggested its master
        assert (len(pair.master.seen(PULL)), len(pair.replica.seen(PULL))) == (2, 1)


@pytest.mark.parametrize("language", [LanguageCode.JAVA, LanguageCode.PYTHON])
async def test_a_pull_never_commits_at_a_replica(language: LanguageCode) -> None:
    """Neither along with the pull nor before it."""
    async with running() as pair:
        pair.replica.language = language
        await pair.unlist_master()
        for _ in range(2):
            await pair.pull(1, commit=1)
        assert len(pair.replica.seen(PULL)) == 2
        for pull in pair.replica.seen(PULL):
            assert not int(pull.ext_fields["sysFlag"]) & PULL_COMMIT_OFFSET
        assert pair.replica.seen(COMMIT) == []
        await pair.list_master()
        await pair.pull(1, commit=1)
        assert pair.master.offsets["g", "t", 0] == 1
        assert int(pair.master.seen(PULL)[0].ext_fields["sysFlag"]) & PULL_COMMIT_OFFSET


async def test_offsets_of_the_group_go_to_a_replica_only_without_a_master() -> None:
    async with running() as pair:
        await pair.access.commit(QUEUE, 1)
        assert await pair.access.committed(QUEUE) == 1
        await pair.unlist_master()
        pair.replica.offsets["g", "t", 0] = 1
        assert await pair.access.committed(QUEUE) == 1
        await pair.access.commit(QUEUE, 2)
        assert (pair.master.offsets["g", "t", 0], pair.replica.offsets["g", "t", 0]) == (1, 2)


async def test_a_commit_to_a_dead_master_in_the_route_is_not_given_to_the_replica() -> None:
    """The replica would lose it, and only the route tells that there is no master."""
    async with running() as pair:
        await pair.session.routes.get("t")
        await pair.master.stop()
        with pytest.raises(RemotingConnectError):
            await pair.access.commit(QUEUE, 1)
        with pytest.raises(RemotingConnectError):
            await pair.access.committed(QUEUE)
        assert pair.replica.requests == []


async def test_a_commit_looks_for_the_master_in_a_fresh_route() -> None:
    async with running() as pair:
        await pair.unlist_master()
        await pair.access.commit(QUEUE, 1)
        pair.master.is_listed = True
        await pair.access.commit(QUEUE, 2)
        assert (pair.master.offsets, pair.replica.offsets) == (
            {("g", "t", 0): 2},
            {("g", "t", 0): 1},
        )


async def test_a_commit_works_without_a_name_server() -> None:
    async with running() as pair:
        await pair.unlist_master()
        await pair.cluster.brokers[0].stop()
        await pair.access.commit(QUEUE, 1)
        assert pair.replica.offsets["g", "t", 0] == 1


async def test_only_a_master_makes_an_offset_stored() -> None:
    async with running() as pair:
        access = pair.access
        assert not access.is_stored(QUEUE, 1)
        await access.commit(QUEUE, 1)
        assert access.is_stored(QUEUE, 1)
        assert not access.is_stored(QUEUE, 2)
        await pair.unlist_master()
        assert not access.is_stored(QUEUE, 1)
        await access.commit(QUEUE, 2)
        assert not access.is_stored(QUEUE, 2)
        pair.replica.broker_id = 0  # promoted; it may have copied older offsets in between
        await pair.session.routes.refresh("t")
        assert not access.is_stored(QUEUE, 2)
        pair.replica.broker_id = 1
        await pair.list_master()
        assert not access.is_stored(QUEUE, 2)
        await access.commit(QUEUE, 2)
        assert access.is_stored(QUEUE, 2)
        access.forget(QUEUE)
        assert not access.is_stored(QUEUE, 2)
        assert await access.committed(QUEUE) == 2
        assert access.is_stored(QUEUE, 2)


async def test_a_master_that_returns_gets_its_commits_again() -> None:
    """A killed broker loses the offsets of its last seconds."""
    async with running() as pair:
        await pair.session.routes.get("t")
        await pair.session.beat()
        await pair.access.commit(QUEUE, 2)
        await pair.master.stop()
        await pair.master.restart()
        await pair.session.beat()
        assert not pair.access.is_stored(QUEUE, 2)
        assert (pair.master.address, "g", "t") not in pair.access._offset_tables


@pytest.mark.parametrize("ask", ["min_offset", "max_offset", "earliest_time", "offset_by_time"])
async def test_the_ends_of_a_queue_are_known_to_the_master_only(ask: str) -> None:
    async with running() as pair:
        await pair.unlist_master()
        arguments = [5] if ask == "offset_by_time" else []
        with pytest.raises(NoMasterError) as raised:
            await getattr(pair.access, ask)(QUEUE, *arguments)
        wanted = f"topic 't': b1 has no master: only replica {pair.replica.address} (id 1)"
        assert str(raised.value) == wanted
        assert pair.replica.requests == []
        pair.master.is_listed = True  # found by itself
        if ask != "earliest_time":  # which the fake broker does not know
            await getattr(pair.access, ask)(QUEUE, *arguments)


async def test_a_master_that_refuses_connections_is_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(away_module, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(away_module, "MAX_PAUSE_SECONDS", 0.01)
    async with running() as pair:
        await pair.pull()
        await pair.master.stop()
        for _ in range(2):  # it is still in the route
            assert [message.body for message in (await pair.pull(1)).messages] == [b"1", b"2"]
        assert len(pair.replica.seen(PULL)) == 2
        assert pair.master.address in pair.session.away
        await pair.master.restart()
        await until(lambda: not pair.session.away)
        assert pair.master.seen(RequestCode.HEART_BEAT), "greeted before the first pull"
        await pair.pull(1)
        assert len(pair.master.seen(PULL)) == 2


async def test_nobody_left_is_the_error_of_the_replica() -> None:
    async with running() as pair:
        await pair.session.routes.get("t")
        await pair.master.stop()
        await pair.replica.stop()
        for _ in range(3):
            with pytest.raises(RemotingConnectError):
                await pair.pull()
        assert len(pair.session.away) == 2


async def test_a_silent_master_is_avoided_after_a_timeout() -> None:
    async with running({"request_timeout": 0.2}) as pair:
        pair.master.silent.add(PULL)
        pair.master.silent.add(RequestCode.HEART_BEAT)
        with pytest.raises(RemotingTimeoutError):
            await pair.pull()
        # A reply of the replica must not time out on a busy machine.
        pair.session.request_timeout = 45.0
        assert len((await pair.pull()).messages) == 3
        assert len(pair.replica.seen(PULL)) == 1


async def test_a_broker_without_a_replica_is_never_away() -> None:
    async with running() as pair:
        pair.replica.is_listed = False
        await pair.session.routes.get("t")
        await pair.master.stop()
        with pytest.raises(RemotingConnectError):
            await pair.pull()
        assert not pair.session.away


@pytest.mark.parametrize(
    ("code", "next_offset"),
    [
        (ResponseCode.PULL_OFFSET_MOVED, 1),  # behind its master, offsetCheckInSlave=true
        (ResponseCode.PULL_OFFSET_MOVED, 7),  # without its master's oldest messages
        (ResponseCode.PULL_RETRY_IMMEDIATELY, 5),  # both, offsetCheckInSlave=false
        (ResponseCode.PULL_NOT_FOUND, 5),
    ],
)
async def test_a_replica_that_lacks_an_offset_moves_nobody(
    monkeypatch: pytest.MonkeyPatch, code: ResponseCode, next_offset: int
) -> None:
    monkeypatch.setattr(queue_access_module, "_LACKING_PAUSE_SECONDS", 0.01)

    def pulled(command: RemotingCommand, *_: object) -> RemotingCommand:
        header = PullMessageResponseHeader(0, next_offset, 0, 1)
        return command.answer(code, ext_fields=header.encode())

    async with running() as pair:
        monkeypatch.setattr(pair.replica, "_pulled", pulled)
        await pair.unlist_master()
        result = await pair.pull(5)
        assert (result.next_offset, result.messages) == (5, [])
        assert result.status is not PullStatus.OFFSET_ILLEGAL


async def test_what_a_filter_skips_at_a_replica_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def pulled(command: RemotingCommand, *_: object) -> RemotingCommand:
        header = PullMessageResponseHeader(0, 9, 0, 9)
        return command.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, ext_fields=header.encode())

    async with running() as pair:
        monkeypatch.setattr(pair.replica, "_pulled", pulled)
        await pair.unlist_master()
        assert (await pair.pull(2)).next_offset == 9


async def test_a_lagging_replica_is_not_flooded_with_long_polls() -> None:
    began = asyncio.get_running_loop().time()
    result = PullResult(PullStatus.NO_MATCHED_MESSAGE, [], 5, 0, 1)
    assert await queue_access_module._from_replica(result, 5, 0.0) == result
    await queue_access_module._from_replica(result, 5, 15.0)
    waited = asyncio.get_running_loop().time() - began
    assert waited >= queue_access_module._LACKING_PAUSE_SECONDS
