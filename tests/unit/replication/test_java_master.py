from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.errors import RemotingClosedError
from pyromq.replication.java_master import JavaMaster
from pyromq.replication.replica import DivergedError
from pyromq.store.message_store import MessageStore
from tests.support.stores import open_store, put


class Client:
    """Answers as a Java broker with this store does."""

    def __init__(self, store: MessageStore | None) -> None:
        self.store = store
        self.addresses: set[str] = set()

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - as in RemotingClient
    ) -> RemotingCommand:
        self.addresses.add(address)
        if self.store is None:
            raise RemotingClosedError(address, "refused")
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {
                "commitLogMinOffset": str(self.store.min_physical_offset),
                "commitLogMaxOffset": str(self.store.max_physical_offset),
            }
            return command.answer(body=KVTable(table).encode())
        assert command.code == RequestCode.VIEW_MESSAGE_BY_ID
        record = self.store.read_record(int(command.ext_fields["offset"]))
        if record is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, "can not find message")
        return command.answer(body=record)


def fill(store: MessageStore, count: int, tag: str = "a") -> None:
    for number in range(count):
        put(store, f"{tag}-{number}".encode() * 40, queue_id=number % 4)
    store.seal()


async def examine(replica: MessageStore, master: MessageStore | None) -> Client:
    client = Client(master)
    java = JavaMaster(replica.config, replica.replication, client, lambda: None)
    await java.examine("127.0.0.1:10912")
    return client


def stores(tmp_path: Path, common: int) -> tuple[MessageStore, MessageStore]:
    """Two stores with the same beginning."""
    master = open_store(tmp_path / "master")
    fill(master, common)
    replica = open_store(tmp_path / "replica")
    source, offset = master.replication.source, 0
    while offset < source.end:
        data = source.slice(offset, 1 << 20)
        replica.replication.log.append(data, check_crc=True)
        offset += len(data)
    return master, replica


async def test_a_log_that_is_the_beginning_of_the_master_s_passes(tmp_path: Path) -> None:
    master, replica = stores(tmp_path, 600)
    fill(master, 10, "more")
    client = await examine(replica, master)
    # The port below the replication port, if no NameServer told another one.
    assert client.addresses == {"127.0.0.1:10911"}
    for store in (master, replica):
        store.stop()


async def test_an_empty_log_passes(tmp_path: Path) -> None:
    master, replica = stores(tmp_path, 0)
    fill(master, 10)
    await examine(replica, master)
    for store in (master, replica):
        store.stop()


@pytest.mark.parametrize("common", [1, 7, 300, 600])
async def test_a_log_with_other_records_is_refused(tmp_path: Path, common: int) -> None:
    master, replica = stores(tmp_path, common)
    end = replica.max_physical_offset
    fill(replica, 200, "other")
    fill(master, 400, "mine")
    with pytest.raises(DivergedError, match=f"--to {end} --apply"):
        await examine(replica, master)
    for store in (master, replica):
        store.stop()


async def test_a_longer_log_is_refused(tmp_path: Path) -> None:
    master, replica = stores(tmp_path, 100)
    end = replica.max_physical_offset
    fill(replica, 5, "other")
    with pytest.raises(DivergedError, match=f"longer than.*--to {end} "):
        await examine(replica, master)
    for store in (master, replica):
        store.stop()


async def test_an_expired_offset_is_refused(tmp_path: Path) -> None:
    master, replica = stores(tmp_path, 10)
    fill(master, 600)
    master._log.segments.take_first()
    with pytest.raises(DivergedError, match="no longer has offset"):
        await examine(replica, master)
    for store in (master, replica):
        store.stop()


async def test_a_master_that_cannot_be_asked_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, replica = stores(tmp_path, 10)
    await examine(replica, None)
    assert "following it unchecked" in caplog.text
    replica.stop()
