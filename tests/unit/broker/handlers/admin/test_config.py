from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import orjson
import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.admin.config import ConfigAdminHandlers
from pyromq.broker.services.live_config import LiveConfig
from pyromq.protocol.java.properties import parse_properties
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from tests.support.brokers import small_store

CONNECTION = Mock(remote_address="127.0.0.1:40404")


@pytest.fixture
def config(tmp_path: Path) -> LiveConfig:
    return LiveConfig(
        BrokerConfig(broker_ip1="127.0.0.1"), small_store(tmp_path), tmp_path / "broker.conf"
    )


@pytest.fixture
def handlers(config: LiveConfig) -> ConfigAdminHandlers:
    return ConfigAdminHandlers(config)


def get(handlers: ConfigAdminHandlers) -> tuple[dict[str, str], dict[str, int]]:
    answer = handlers.get_config(CONNECTION, RemotingCommand(RequestCode.GET_BROKER_CONFIG))
    assert answer.code == ResponseCode.SUCCESS
    return parse_properties(answer.body), orjson.loads(answer.ext_fields["version"])


async def update(handlers: ConfigAdminHandlers, text: bytes) -> RemotingCommand:
    request = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=text)
    return await handlers.update_config(CONNECTION, request)


async def test_an_update_can_be_read_back(handlers: ConfigAdminHandlers) -> None:
    settings, version = get(handlers)
    assert settings["fileReservedTime"] == "72"
    assert version["counter"] == 0

    answer = await update(handlers, b"fileReservedTime=48\n")

    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    settings, version = get(handlers)
    assert settings["fileReservedTime"] == "48"
    assert version["counter"] == 1


async def test_settings_that_need_a_restart_are_named(handlers: ConfigAdminHandlers) -> None:
    answer = await update(handlers, b"maxMessageSize=12000")

    assert answer.code == ResponseCode.SUCCESS
    assert answer.remark == "saved; needs a restart: maxMessageSize"


async def test_settings_without_effect_are_named(handlers: ConfigAdminHandlers) -> None:
    answer = await update(handlers, b"maxMessageSize=12000\nuseReentrantLockWhenPutMessage=false")

    assert answer.code == ResponseCode.SUCCESS
    assert answer.remark == (
        "saved; needs a restart: maxMessageSize; "
        "useReentrantLockWhenPutMessage=false has no effect: "
        "one thread appends to the log; there is no put lock"
    )


async def test_an_empty_update_changes_nothing(handlers: ConfigAdminHandlers) -> None:
    assert (await update(handlers, b"# nothing")).code == ResponseCode.SUCCESS
    assert get(handlers)[1]["counter"] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"fileReservedTime=soon", "nothing was changed: fileReservedTime=soon: expected"),
        (b"noSuchKey=1", "nothing was changed: unknown setting noSuchKey"),
        (b"a=\\u12", "nothing was changed: line 1"),
        (b"#" * 70_000, "nothing was changed: update of 70000 bytes, limit 65536"),
        (b"brokerName=../../x", "nothing was changed: brokerName='../../x': expected"),
        (b"storePathRootDir=/x", "nothing was changed: storePathRootDir cannot be changed"),
    ],
)
async def test_bad_updates_are_refused(
    handlers: ConfigAdminHandlers, text: bytes, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        await update(handlers, text)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


async def test_a_file_that_cannot_be_written(
    handlers: ConfigAdminHandlers, config: LiveConfig
) -> None:
    config.file.mkdir()
    with pytest.raises(RequestError, match=r"cannot write .*broker\.conf: Is a directory"):
        await update(handlers, b"fileReservedTime=1")
