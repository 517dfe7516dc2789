from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyromq.base.settings import ConfigError, settings_of
from pyromq.base.unsupported_settings import NAMESERVER
from pyromq.nameserver.config import NamesrvConfig
from pyromq.protocol.java.properties import format_properties, parse_properties


def test_defaults_are_those_of_rocketmq() -> None:
    config = NamesrvConfig()
    home = Path.home() / "namesrv"
    assert config.listen_port == 9876
    assert config.kv_config_path == str(home / "kvConfig.json")
    assert config.config_store_path == str(home / "namesrv.properties")
    assert config.product_env_name == "center"
    assert (config.cluster_test, config.order_message_enable) == (False, False)
    assert config.server_channel_max_idle_time_seconds == 120


def test_load_a_java_file() -> None:
    config, warnings = NamesrvConfig.load(
        parse_properties(
            b"listenPort=19876\norderMessageEnable = true\nkvConfigPath=/data/kv.json\n"
            b"serverWorkerThreads=8\nserverSelectorThreads=4\nlistenprot=1\nrocketmqHome=/x\n"
        )
    )
    assert config.listen_port == 19876
    assert config.order_message_enable is True
    assert config.kv_config_path == "/data/kv.json"
    assert warnings == [
        "unknown setting listenprot (did you mean listenPort?) is ignored",
        (
            "serverSelectorThreads=4 has no effect: requests run on one event loop; there are no "
            "thread pools to size"
        ),
    ]


@pytest.mark.parametrize("home", ["~", "$HOME", "${HOME}", "${user.home}"])
def test_home_directory_in_paths(home: str) -> None:
    config, _ = NamesrvConfig.load({"kvConfigPath": f"{home}/x.json", "productEnvName": home})
    assert config.kv_config_path == str(Path.home() / "x.json")
    assert config.product_env_name == home


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "x"),
        ("listenPort", "65536"),
        ("listenPort", "-1"),
        ("clusterTest", "maybe"),
        ("useTLS", "yes"),
        ("tls.server.mode", "on"),
    ],
)
def test_bad_values_are_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={value}: expected"):
        NamesrvConfig.load({key: value})
    with pytest.raises(ConfigError, match=f"{key}={value}: expected"):
        NamesrvConfig().changed({key: value})


def test_changed_keeps_everything_else() -> None:
    config = NamesrvConfig(listen_port=1, kv_config_path="a\\b")
    changed = config.changed({"orderMessageEnable": "true", "unknown": "1"})
    assert changed == dataclasses.replace(config, order_message_enable=True)
    assert config.order_message_enable is False


def test_written_properties_read_back() -> None:
    config = NamesrvConfig(listen_port=1, kv_config_path="C:\\a = b\tü")
    text = format_properties(config.to_properties())
    assert NamesrvConfig.load(parse_properties(text)) == (config, [])
    assert "rocketmqHome" not in NamesrvConfig(rocketmq_home=None).to_properties()


def test_every_setting_is_documented_and_its_key_is_its_name_in_camel_case() -> None:
    for item in settings_of(NamesrvConfig):
        assert item.doc.endswith((".", ".)"))
        head, *rest = item.attribute.split("_")
        key = head + "".join(word.capitalize() for word in rest)
        assert item.key.replace(".", "").lower() == key.lower()
        assert item.key not in NAMESERVER
