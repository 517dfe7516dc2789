from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyromq.base.settings import ConfigError, settings_of
from pyromq.broker.config import BrokerConfig, load_broker_properties
from pyromq.broker.services.live_config import NEXT_START, Applied, LiveConfig, own_file
from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.store.config import BrokerRole, MessageStoreConfig

BEFORE = """\
# the broker of the shop
brokerName = shop
fileReservedTime=48
"""


class Setup:
    def __init__(self, root: Path, text: str | None = BEFORE) -> None:
        self.file = root / "conf" / "broker.conf"
        properties = {"storePathRootDir": str(root / "store"), "brokerIP1": "127.0.0.1"}
        if text is not None:
            self.file.parent.mkdir()
            self.file.write_text(text)
            properties |= parse_properties(text)
        loaded = load_broker_properties(properties)
        self.broker: BrokerConfig = loaded.broker
        self.store: MessageStoreConfig = loaded.store
        self.now = 1000
        self.config = LiveConfig(
            self.broker, self.store, self.file if text is not None else None, now=lambda: self.now
        )
        self.told: list[list[str]] = []
        self.config.listeners.append(self.told.append)


async def test_a_live_setting_is_saved_and_in_effect_at_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path)

    applied = await setup.config.update({"fileReservedTime": "12", "brokerPermission": "4"})

    assert applied == Applied(["brokerPermission", "fileReservedTime"], [], [])
    assert setup.store.file_reserved_time == 12
    assert setup.broker.broker_permission == 4
    assert setup.told == [["brokerPermission", "fileReservedTime"]]
    assert setup.file.read_text() == BEFORE.replace("48", "12") + "brokerPermission=4\n"
    assert "fileReservedTime=12\n" in setup.config.text()
    assert [path.name for path in setup.file.parent.iterdir()] == ["broker.conf"]


async def test_another_setting_is_saved_for_the_next_start(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    before = setup.config.text()

    applied = await setup.config.update({"maxMessageSize": "12345", "useTLS": "false"})

    assert applied == Applied([], ["maxMessageSize"], [])
    assert setup.config.text() == before
    saved = load_broker_properties(parse_properties(setup.file.read_bytes()))
    assert saved.store.max_message_size == 12345
    assert saved.warnings == []


async def test_a_setting_without_effect_is_saved_and_reported(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    changes = {"sendMessageThreadPoolNums": "64", "debugLockEnable": "false"}
    with pytest.raises(ConfigError, match="haMasterAddress cannot be changed"):
        await setup.config.update({"haMasterAddress": "10.0.0.1:1"})

    applied = await setup.config.update(changes)

    assert applied == Applied(
        [],
        [],
        [
            (
                "sendMessageThreadPoolNums=64 has no effect: requests run on one event loop; there "
                "are no thread pools to size"
            ),
        ],
    )
    assert changes.items() <= parse_properties(setup.file.read_bytes()).items()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fileReservedTime": "1", "brokerPermission": "many"}, "brokerPermission=many: expected"),
        ({"fileReservedTime": "1", "brokerPermision": "4"}, "did you mean brokerPermission"),
        ({"fileReservedTime": "1", "deleteWhen": "25"}, "deleteWhen=25: expected hours"),
        ({"fileReservedTime": "1", "aclEnable": "true"}, "aclEnable=true"),
        ({"fileReservedTime": "1", "brokerRole": "SLAVE"}, "ASYNC_MASTER to SLAVE: set brokerRole"),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, "`pyromq broker promote` makes a replica"),
        ({"fileReservedTime": "1", "brokerRole": "MASTER"}, "brokerRole=MASTER: expected"),
        ({"fileReservedTime": "1", "useTLS": "true"}, "useTLS cannot be changed while"),
        ({"fileReservedTime": "1", "messageStorePlugIn": "a:b"}, "messageStorePlugIn cannot be"),
        ({"fileReservedTime": "1", "brokerHooks": "a:b"}, "brokerHooks cannot be changed while"),
        ({"fileReservedTime": "1", "brokerName": "../../x"}, "brokerName='../../x': expected"),
        ({"fileReservedTime": "1", "regionId": "a\0b"}, r"regionId=a\\x00b: expected"),
        ({"fileReservedTime": "1", "regionId": "a\nb=c"}, r"regionId=a\\nb=c: expected"),
        ({"fileReservedTime": "1", "regionId": "${SECRET}"}, "not a reference to the environment"),
        ({"fileReservedTime": "1", "regionId": "a" * 256}, "expected at most 255 characters"),
    ],
)
async def test_a_bad_key_or_value_changes_nothing(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    setup = Setup(tmp_path)
    before, version = setup.config.text(), setup.config.version

    with pytest.raises(ConfigError, match=reason):
        await setup.config.update(changes)

    assert setup.config.text() == before
    assert setup.config.version == version
    assert setup.file.read_text() == BEFORE
    assert setup.told == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storePathRootDir", "/tmp/elsewhere"),
        ("storePathCommitLog", "/tmp/elsewhere"),
        ("mappedFileSizeCommitLog", "2097152"),
        ("mappedFileSizeConsumeQueue", "2000"),
        ("maxHashSlotNum", "64"),
        ("enableConsumeQueueExt", "true"),
        ("messageDelayLevel", "1s"),
        ("transientStorePoolEnable", "true"),
        ("brokerName", "other"),
        ("brokerClusterName", "other"),
        ("brokerIP1", "10.0.0.1"),
        ("listenPort", "12000"),
        ("namesrvAddr", "10.0.0.1:9876"),
        ("rocketmqHome", "/tmp; touch x"),
        ("fetchNamesrvAddrByAddressServer", "true"),
        ("dLegerPeers", "n0-10.0.0.1:1"),
    ],
)
async def test_what_the_next_start_depends_on_is_changed_in_the_file_only(
    tmp_path: Path, key: str, value: str
) -> None:
    setup = Setup(tmp_path)
    before = setup.config.text()

    with pytest.raises(ConfigError, match=rf"{key} cannot be changed .*edit .*broker\.conf and"):
        await setup.config.update({"fileReservedTime": "1", key: value})

    assert setup.config.text() == before
    assert setup.file.read_text() == BEFORE


async def test_a_value_that_is_in_effect_already_may_be_sent_again(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    await setup.config.update({"brokerName": "shop", "fileReservedTime": "12"})
    with pytest.raises(ConfigError, match="filterServerNums cannot be changed"):
        await setup.config.update({"filterServerNums": "1"})
    assert setup.file.read_text() == BEFORE.replace("48", "12").replace(" = ", "=")


def test_each_setting_that_waits_for_a_start_is_one() -> None:
    settings = [item for kind in (BrokerConfig, MessageStoreConfig) for item in settings_of(kind)]
    waiting = {item.key for item in settings if not item.live}
    assert waiting > NEXT_START


async def test_a_file_that_would_not_load_is_not_written(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    edited = BEFORE + "listenPort=many\n"
    setup.file.write_text(edited)

    with pytest.raises(ConfigError, match=r"broker\.conf would not load: listenPort=many"):
        await setup.config.update({"brokerPermission": "4"})

    assert setup.file.read_text() == edited
    assert setup.broker.broker_permission == 6


async def test_a_file_that_cannot_be_written_or_read_changes_nothing(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    before = setup.config.text()
    setup.file.write_text("bad\\u=1\n")
    with pytest.raises(PropertiesError, match=r"broker\.conf: line 1"):
        await setup.config.update({"fileReservedTime": "12"})

    setup.file.unlink()
    setup.file.mkdir()
    with pytest.raises(OSError, match="directory"):
        await setup.config.update({"fileReservedTime": "12"})

    assert setup.config.text() == before


async def test_without_a_file_the_store_keeps_the_changes(tmp_path: Path) -> None:
    setup = Setup(tmp_path, None)

    await setup.config.update({"fileReservedTime": "12"})

    file = tmp_path / "store" / "config" / "broker.properties"
    assert setup.config.file == file
    assert file.read_text() == "fileReservedTime=12\n"


async def test_brokers_that_share_a_file_lose_no_change(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    other = LiveConfig(setup.broker, setup.store, setup.file)
    for number in range(20):
        await asyncio.gather(
            setup.config.update({"fileReservedTime": str(100 + number)}),
            other.update({"brokerPermission": str(4 + number % 2)}),
        )
        saved = parse_properties(setup.file.read_bytes())
        assert saved["fileReservedTime"] == str(100 + number)
        assert saved["brokerPermission"] == str(4 + number % 2)


async def test_rights_and_links_stay(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.file.chmod(0o600)
    link = tmp_path / "link.conf"
    link.symlink_to(setup.file)
    setup.config.file = link

    await setup.config.update({"fileReservedTime": "12"})

    assert link.is_symlink()
    assert setup.file.stat().st_mode & 0o777 == 0o600
    assert "fileReservedTime=12\n" in setup.file.read_text()


async def test_the_version_counts_changes(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    assert (setup.config.version.counter, setup.config.version.timestamp) == (0, 1000)
    setup.now = 2000

    await setup.config.update({"fileReservedTime": "12"})

    assert (setup.config.version.counter, setup.config.version.timestamp) == (1, 2000)


async def test_the_text_has_what_tools_insist_on_and_nothing_without_a_value(
    tmp_path: Path,
) -> None:
    settings = parse_properties(Setup(tmp_path).config.text())

    assert settings["filterServerNums"] == "0"
    assert settings["useTLS"] == "false"
    assert int(settings["clientCallbackExecutorThreads"]) > 0
    assert "" not in settings.values()
    assert "storePathCommitLog" not in settings


async def test_a_master_changes_its_kind_at_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path)

    applied = await setup.config.update({"brokerRole": "SYNC_MASTER", "slaveTimeout": "100"})

    assert applied == Applied(["brokerRole", "slaveTimeout"], [], [])
    assert setup.store.broker_role is BrokerRole.SYNC_MASTER
    assert "brokerRole=SYNC_MASTER\n" in setup.file.read_text()


async def test_a_replica_is_not_promoted_by_a_change_of_settings(tmp_path: Path) -> None:
    setup = Setup(tmp_path, BEFORE + "brokerRole=SLAVE\nbrokerId=2\n")

    with pytest.raises(ConfigError, match="SLAVE to ASYNC_MASTER: `pyromq broker promote`"):
        await setup.config.update({"brokerRole": "ASYNC_MASTER"})

    applied = await setup.config.update({"brokerRole": "SLAVE", "fileReservedTime": "1"})
    assert applied.now == ["fileReservedTime"]


async def test_a_saved_role_counts_at_the_next_start(tmp_path: Path) -> None:
    setup = Setup(tmp_path, BEFORE + "brokerRole=SLAVE\nbrokerId=2\n")
    version = setup.config.version

    await setup.config.save_role(BrokerRole.SYNC_MASTER, 0)

    assert (setup.store.broker_role, setup.broker.broker_id) == (BrokerRole.SYNC_MASTER, 0)
    assert setup.config.version != version
    assert setup.told == []
    saved = load_broker_properties(parse_properties(setup.file.read_bytes()))
    assert saved.store.broker_role is BrokerRole.SYNC_MASTER
    assert saved.broker.broker_id == 0
    assert saved.warnings == []
    assert setup.file.read_text().startswith(BEFORE)


async def test_brokers_that_share_a_file_save_their_roles_elsewhere(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    file = own_file(setup.store)
    config = LiveConfig(setup.broker, setup.store, setup.file, role_file=file)

    await config.save_role(BrokerRole.SLAVE, 3)
    await config.update({"fileReservedTime": "12"})

    assert file.read_text() == "brokerRole=SLAVE\nbrokerId=3\n"
    assert setup.file.read_text() == BEFORE.replace("48", "12")


async def test_a_role_that_cannot_be_saved_is_not_taken(tmp_path: Path) -> None:
    setup = Setup(tmp_path, BEFORE + "brokerRole=SLAVE\nbrokerId=2\n")
    setup.file.write_text("brokerName=\n")

    with pytest.raises(ConfigError, match="would not load: brokerName="):
        await setup.config.save_role(BrokerRole.ASYNC_MASTER, 0)

    assert (setup.store.broker_role, setup.broker.broker_id) == (BrokerRole.SLAVE, 2)


async def test_a_secret_is_neither_shown_nor_changed(tmp_path: Path) -> None:
    text = "replicationAccessKey=replica\nreplicationSecretKey=hush\n"
    setup = Setup(tmp_path, text)

    assert "replicationSecretKey=******\n" in setup.config.text()
    assert "hush" not in setup.config.text()
    with pytest.raises(ConfigError, match="cannot be changed") as caught:
        await setup.config.update({"replicationSecretKey": "other"})
    assert "other" not in str(caught.value)
    # Another change is checked together with the secret, not with its mask.
    await setup.config.update({"fileReservedTime": "12"})
    assert setup.broker.replication_secret_key == "hush"
    assert setup.file.read_text() == text + "fileReservedTime=12\n"


async def test_a_change_counts_the_tls_file_in(tmp_path: Path) -> None:
    """The broker's own file turns TLS on, the TLS file has the rest: both load together."""
    tls = tmp_path / "tls.properties"
    tls.write_text("tls.server.certPath=/c\ntls.server.keyPath=/k\ntls.server.keyPassword=hush\n")
    setup = Setup(tmp_path, f"tls.server.mode=enforcing\ntls.config.file={tls}\n")

    await setup.config.update({"brokerPermission": "4"})

    assert "brokerPermission=4" in setup.file.read_text()
    assert "hush" not in setup.config.text() + setup.file.read_text()
    with pytest.raises(ConfigError, match=r"tls\.server\.mode cannot be changed while"):
        await setup.config.update({"tls.server.mode": "disabled"})
