from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.acl.settings import AclMode
from pyromq.broker.broker import Broker
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.access import ADMIN, ALICE, Guarded, guarded_broker
from tests.support.brokers import local_broker, small_store

OK = ResponseCode.SUCCESS


@pytest.fixture(params=list(AclMode), ids=lambda mode: mode.name)
async def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path, request.param) as running:
        yield running


def create(**fields: str) -> RemotingCommand:
    return RemotingCommand(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        ext_fields={
            "accessKey": "carol_key",
            "secretKey": "carol_secret",
            "admin": "false",
            **fields,
        },
    )


async def test_accounts_come_and_go(guarded: Guarded) -> None:
    answer = await guarded.ask(create(topicPerms="T=PUB,Q=SUB"), ADMIN)
    assert answer.code == OK, answer
    assert guarded.broker._access_control is not None
    rules = guarded.broker._access_control.rules
    assert set(rules.rules.accounts["carol_key"].resources) == {"T", "Q"}
    delete = RemotingCommand(RequestCode.DELETE_ACL_CONFIG, ext_fields={"accessKey": "carol_key"})
    assert (await guarded.ask(delete, ADMIN)).code == OK
    assert "carol_key" not in rules.rules.accounts
    delete = RemotingCommand(RequestCode.DELETE_ACL_CONFIG, ext_fields={"accessKey": "carol_key"})
    answer = await guarded.ask(delete, ADMIN)
    assert answer.code == ResponseCode.DELETE_ACL_CONFIG_FAILED
    text = "The accesskey[carol_key] corresponding to accessConfig has been deleted failed."
    assert (answer.remark or "").startswith(text)
    assert all("carol_secret" not in str(line) for line in guarded.audit)
    assert guarded.audit[0]["resource"] == "carol_key"


async def test_failures(guarded: Guarded) -> None:
    answer = await guarded.ask(create(secretKey="short"), ADMIN)
    assert answer.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    white = RemotingCommand(
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        ext_fields={"globalWhiteAddrs": "nonsense"},
    )
    answer = await guarded.ask(white, ADMIN)
    assert answer.code == ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    assert "The globalWhiteAddresses[nonsense] has been updated failed." in (answer.remark or "")


async def test_the_white_list(guarded: Guarded) -> None:
    white = RemotingCommand(
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext_fields={"globalWhiteAddrs": "127.0.0.1"}
    )
    assert (await guarded.ask(white, ADMIN)).code == OK
    info = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    assert (await guarded.ask(info, None)).code == OK


async def test_versions(guarded: Guarded) -> None:
    await guarded.ask(create(), ADMIN)
    answer = await guarded.ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_ACL_INFO), ADMIN)
    version = json.loads(answer.ext_fields["version"])
    assert version["counter"] == 1
    path = str(guarded.home / "conf/plain_acl.yml")
    assert json.loads(answer.ext_fields["allAclFileVersion"]) == {path: version}
    assert answer.ext_fields["brokerAddr"] == guarded.broker.address


async def test_secrets_are_masked_in_strict_mode(guarded: Guarded) -> None:
    request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    answer = await guarded.ask(request, ADMIN)
    assert answer.code == OK
    accounts = json.loads(answer.body)["plainAccessConfigs"]
    assert [account["accessKey"] for account in accounts][:2] == [ADMIN, ALICE]
    assert guarded.broker._access_control is not None
    is_strict = guarded.broker._access_control.is_strict
    assert (b"alice_secret" in answer.body) is not is_strict


async def test_a_broker_without_access_control_says_so(tmp_path: Path) -> None:
    broker, client = Broker(local_broker(), small_store(tmp_path)), RemotingClient()
    await broker.start()
    try:
        for code in (50, 51, 52, 53, 54):
            answer = await client.request(broker.address, RemotingCommand(code))
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "no access control" in (answer.remark or "")
    finally:
        await client.close()
        await broker.stop()
