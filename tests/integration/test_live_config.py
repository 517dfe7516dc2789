"""Settings that are changed while a broker runs, as `mqadmin updateBrokerConfig` does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.base.log_levels import apply_levels
from pyromq.broker.broker import Broker
from pyromq.broker.config import load_broker_properties
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.java.properties import parse_properties
from pyromq.protocol.wire.bodies import TopicRouteData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.patience import DEADLINE, PATIENT_PROPERTIES
from tests.support.requests import pull_request, send_request


class Setup:
    """A NameServer, a broker that was started with a file, and somebody who asks them."""

    def __init__(self, root: Path) -> None:
        self.file = root / "broker.conf"
        self.client = RemotingClient()
        self.nameserver = NameServer(
            NamesrvConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(root / "kvConfig.json"),
                config_store_path=str(root / "namesrv.properties"),
            )
        )
        self.root = root

    async def start(self) -> None:
        await self.nameserver.start()
        self.namesrv = f"127.0.0.1:{self.nameserver.port}"
        self.file.write_text(
            "# of the shop\n"
            + "".join(f"{key}={value}\n" for key, value in PATIENT_PROPERTIES.items())
            + f"namesrvAddr={self.namesrv}\n"
            f"storePathRootDir={self.root / 'store'}\n"
            "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=2000\n"
            "maxHashSlotNum=64\nmaxIndexNum=64\n"
            "listenPort=0\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n"
        )
        await self.start_broker()

    async def start_broker(self) -> None:
        loaded = load_broker_properties(parse_properties(self.file.read_bytes()))
        self.broker = Broker(loaded.broker, loaded.store, config_file=self.file)
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.nameserver.stop()
        await self.client.close()

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        return await self.client.request(self.broker.address, request, timeout=DEADLINE)

    async def change(self, text: bytes) -> RemotingCommand:
        return await self.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=text))

    async def settings(self) -> dict[str, str]:
        answer = await self.ask(RemotingCommand(RequestCode.GET_BROKER_CONFIG))
        assert answer.code == ResponseCode.SUCCESS
        return parse_properties(answer.body)

    async def permission(self, topic: str) -> int | None:
        answer = await self.client.request(
            self.namesrv,
            RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}),
            timeout=DEADLINE,
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        return TopicRouteData.decode(answer.body).queue_datas[0].perm


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    setup = Setup(tmp_path)
    await setup.start()
    yield setup
    await setup.stop()


async def test_sends_feel_a_change_at_once(setup: Setup) -> None:
    assert (await setup.ask(send_request())).code == ResponseCode.SUCCESS

    far = 4_000_000_000_000
    answer = await setup.change(f"startAcceptSendRequestTimeStamp={far}".encode())
    assert answer.code == ResponseCode.SUCCESS
    refused = await setup.ask(send_request())
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "until 2096-10-0" in (refused.remark or "")

    await setup.change(b"startAcceptSendRequestTimeStamp=0\nregionId=north")
    answer = await setup.ask(send_request())
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext_fields["MSG_REGION"] == "north"


async def test_a_new_permission_is_known_to_the_nameserver(setup: Setup) -> None:
    assert (await setup.ask(send_request())).code == ResponseCode.SUCCESS
    assert await setup.permission("T") == 6

    await setup.change(b"brokerPermission=4")

    async with asyncio.timeout(DEADLINE):
        while await setup.permission("T") != 4:  # noqa: ASYNC110 - the NameServer has no event
            await asyncio.sleep(0.01)


async def test_a_change_outlives_the_broker(setup: Setup) -> None:
    assert (await setup.change(b"autoCreateTopicEnable=false")).code == ResponseCode.SUCCESS
    assert (await setup.ask(send_request(topic="New"))).code == ResponseCode.TOPIC_NOT_EXIST
    assert setup.file.read_text().startswith("# of the shop\n")

    await setup.broker.stop()
    await setup.start_broker()

    assert (await setup.settings())["autoCreateTopicEnable"] == "false"
    assert (await setup.ask(send_request(topic="New"))).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_bad_change_is_refused_and_nothing_happens(setup: Setup) -> None:
    before, text = await setup.settings(), setup.file.read_text()

    answer = await setup.change(b"fileReservedTime=1\nbrokerPermission=none")

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "brokerPermission=none: expected" in (answer.remark or "")
    assert await setup.settings() == before
    assert setup.file.read_text() == text


@pytest.mark.parametrize(
    "change",
    [
        b"brokerName=../../x",
        b"brokerName=a\\u0000b",
        b"storePathRootDir=/nowhere/else",
        b"mappedFileSizeCommitLog=2097152",
        b"mappedFileSizeConsumeQueue=4000",
        b"regionId=a\\nstorePathRootDir=/nowhere/else",
        b"brokerRole=SLAVE\nbrokerId=1",
    ],
)
async def test_no_peer_can_change_what_the_next_start_depends_on(
    setup: Setup, change: bytes
) -> None:
    sent = await setup.ask(send_request(queueId="0"))
    assert sent.ext_fields["queueOffset"] == "0"
    text = setup.file.read_text()

    assert (await setup.change(change)).code == ResponseCode.SYSTEM_ERROR
    assert setup.file.read_text() == text

    await setup.broker.stop()
    await setup.start_broker()
    assert (await setup.ask(send_request(queueId="0"))).ext_fields["queueOffset"] == "1"


async def test_the_log_level_changes_at_once_and_is_kept(setup: Setup) -> None:
    store, others = logging.getLogger("pyromq.store"), logging.getLogger("pyromq.acl")
    try:
        answer = await setup.change(b"logLevel=ERROR,pyromq.store=DEBUG")
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert store.isEnabledFor(logging.DEBUG)
        assert not others.isEnabledFor(logging.WARNING)
        refused = await setup.change(b"logLevel=pyromq.store")
        assert "logLevel=pyromq.store: expected a level" in (refused.remark or "")
        apply_levels(None)
        await setup.broker.stop()
        await setup.start_broker()
        assert store.isEnabledFor(logging.DEBUG)
        assert (await setup.settings())["logLevel"] == "ERROR,pyromq.store=DEBUG"
    finally:
        await setup.change(b"logLevel=")
    assert store.level == others.level == logging.NOTSET


async def test_a_slow_group_is_disabled_at_run_time(setup: Setup) -> None:
    """Through the whole broker: live settings, pulls of the kernel, protection, refusal."""
    for _ in range(5):
        assert (await setup.ask(send_request(body=bytes(2000), queueId="0"))).code == 0
    pull = pull_request(consumerGroup="slow", maxMsgNums="1")
    for _ in range(2):
        assert (await setup.ask(pull)).code == ResponseCode.SUCCESS
    await setup.change(b"disableConsumeIfConsumerReadSlowly=true\nconsumerFallbehindThreshold=4000")
    assert setup.broker._assembly is not None
    assert setup.broker._upkeep is not None
    await setup.broker._assembly.parts.stats.count()
    await setup.broker._upkeep._protection.protect()
    assert (await setup.ask(pull)).code == ResponseCode.NO_PERMISSION
