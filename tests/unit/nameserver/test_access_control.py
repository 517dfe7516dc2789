from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.acl.files import AclFileError
from pyromq.base.settings import ConfigError
from pyromq.broker.broker import Broker
from pyromq.nameserver.access_control import CHANGES, READS, NameServerAccess
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.access import ADMIN, ALICE, PEER, SECRETS, write_accounts
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until


def config(home: Path) -> NamesrvConfig:
    return NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(home / "kv.json"),
        config_store_path=str(home / "namesrv.properties"),
        rocketmq_home=str(home),
        acl_enable=True,
    )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServer]:
    write_accounts(tmp_path)
    server = NameServer(config(tmp_path))
    await server.start()
    yield server
    await server.stop()


async def ask(
    server: NameServer, code: RequestCode, account: str | None = None, **fields: str
) -> RemotingCommand:
    request = RemotingCommand(code, ext_fields=fields)
    if account is not None:
        acl.sign(request.ext_fields, request.body, account, SECRETS[account])
    client = RemotingClient()
    try:
        return await client.request(f"127.0.0.1:{server.port}", request, timeout=DEADLINE)
    finally:
        await client.close()


async def test_changes_need_an_administrator(server: NameServer, tmp_path: Path) -> None:
    put = {"namespace": "n", "key": "k", "value": "v"}
    for account in (None, ALICE, PEER):
        answer = await ask(server, RequestCode.PUT_KV_CONFIG, account, **put)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "AclException" in (answer.remark or "")
    answer = await ask(server, RequestCode.PUT_KV_CONFIG, ADMIN, **put)
    assert answer.code == ResponseCode.SUCCESS
    # Reading is open.
    answer = await ask(server, RequestCode.GET_KV_CONFIG, None, namespace="n", key="k")
    assert answer.ext_fields["value"] == "v"
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["account"], line["result"]) for line in lines] == [
        (None, "denied"),
        (ALICE, "denied"),
        (PEER, "denied"),
        (ADMIN, "done"),
    ]


async def test_brokers_sign_their_registration(server: NameServer, tmp_path: Path) -> None:
    settings = {"namesrv_addr": f"127.0.0.1:{server.port}"}
    stranger = Broker(local_broker(broker_name="stranger", **settings), small_store(tmp_path / "a"))
    known = Broker(
        local_broker(
            broker_name="known",
            replication_access_key=PEER,
            replication_secret_key=SECRETS[PEER],
            **settings,
        ),
        small_store(tmp_path / "b"),
    )
    for broker in (stranger, known):
        await broker.start()
    try:
        await until(lambda: "known" in server.routes.cluster_info().broker_addr_table)
        assert "stranger" not in server.routes.cluster_info().broker_addr_table
    finally:
        for broker in (stranger, known):
            await broker.stop()
    assert not server.routes.cluster_info().broker_addr_table  # it could unregister, too


async def test_failed_changes_are_logged(server: NameServer, tmp_path: Path) -> None:
    answer = await ask(server, RequestCode.PUT_KV_CONFIG, ADMIN)
    assert answer.code != ResponseCode.SUCCESS
    assert json.loads((tmp_path / "audit.log").read_text())["result"] == "failed"


def test_every_code_has_a_class(tmp_path: Path) -> None:
    write_accounts(tmp_path)
    server = NameServer(config(tmp_path))
    table = server._handlers.table()
    assert table.keys() == CHANGES | READS
    access = NameServerAccess(config(tmp_path))
    with pytest.raises(ValueError, match="without a class"):
        access.guard({**table, 9999: table[RequestCode.GET_KV_CONFIG]})


async def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    write_accounts(tmp_path, "accounts: [")
    server = NameServer(config(tmp_path))
    with pytest.raises(AclFileError):
        await server.start()
    await server.stop()


def test_access_control_needs_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigError, match="rocketmqHome"):
        NamesrvConfig(acl_enable=True)
