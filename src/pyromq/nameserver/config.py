"""The NameServer's configuration: RocketMQ's NamesrvConfig and its server's listening keys.

Names and defaults are those of RocketMQ 4.9.7. Keys that RocketMQ knows and that mean
nothing here are in `KNOWN_WITHOUT_EFFECT`: files of running NameServers load without noise.

Read at start-up by the command line. Immutable; an administrator's change over the wire
(`changed`) makes a new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pyromq.base.settings import load_settings, setting, settings_of
from pyromq.remoting.limits import PeerSettings

#: Where RocketMQ keeps a NameServer's files unless it is told otherwise.
_HOME_FOLDER = "namesrv"

_PEERS = PeerSettings(received=128 << 20, unsent=256 << 20)


def _default_path(name: str) -> str:
    return str(Path.home() / _HOME_FOLDER / name)


@dataclass(frozen=True, slots=True)
class NamesrvConfig:
    """Everything that can be set about a NameServer."""

    listen_port: int = setting(
        "listenPort",
        9876,
        "TCP port to listen on; 0 takes any free one.",
        minimum=0,
        maximum=65535,
        important=True,
    )
    bind_address: str = setting("bindAddress", "0.0.0.0", "Local address to listen on.")  # noqa: S104 brokers and clients are on other machines
    server_channel_max_idle_time_seconds: int = setting(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "A connection that was silent for this many seconds is closed.",
        minimum=1,
        limit="The connection is closed.",
    )
    max_connections: int = _PEERS.max_connections
    max_connections_per_address: int = _PEERS.max_connections_per_address
    max_received_bytes: int = _PEERS.max_received_bytes
    max_unsent_bytes: int = _PEERS.max_unsent_bytes
    max_frame_seconds: int = _PEERS.max_frame_seconds
    kv_config_path: str = setting(
        "kvConfigPath",
        doc="File of the key-value configuration.",
        default_factory=lambda: _default_path("kvConfig.json"),
        important=True,
    )
    config_store_path: str = setting(
        "configStorePath",
        doc="File that an administrator's changes of these settings are written to.",
        default_factory=lambda: _default_path("namesrv.properties"),
        important=True,
    )
    order_message_enable: bool = setting(
        "orderMessageEnable",
        False,
        "Whether a route carries the order configuration of its topic.",
        live=True,
    )
    cluster_test: bool = setting(
        "clusterTest",
        False,
        "Ask the NameServers in NAMESRV_ADDR of the environment, those of production, for "
        "topics that are not known here; also as orderMessageEnable.",
        live=True,
    )
    product_env_name: str = setting(
        "productEnvName",
        "center",
        "Name of the production environment for RocketMQ's address server; without effect.",
    )
    rocketmq_home: str | None = setting(
        "rocketmqHome", None, "Directory of the installation; without effect."
    )
    max_brokers: int = setting(
        "maxBrokers",
        5_000,
        "Maximum number of brokers; a broker counts once for each of its addresses.",
        minimum=1,
        limit="SYSTEM_ERROR to the registration; brokers that are registered stay.",
    )
    max_brokers_per_connection: int = setting(
        "maxBrokersPerConnection",
        256,
        "Maximum number of brokers that register over one connection, and at one address.",
        minimum=1,
        limit="SYSTEM_ERROR to the registration; brokers that are registered stay.",
    )
    max_registration_size: int = setting(
        "maxRegistrationSize",
        16 * 1024 * 1024,
        "Maximum bytes of a registration, after decompression.",
        minimum=1024,
        limit="SYSTEM_ERROR to the registration.",
    )
    max_topics_per_broker: int = setting(
        "maxTopicsPerBroker",
        100_000,
        "Maximum number of topics of one broker name.",
        minimum=1,
        limit="SYSTEM_ERROR to a registration that names more; topics beyond the limit that a "
        "broker adds bit by bit get no route.",
    )
    max_topics: int = setting(
        "maxTopics",
        500_000,
        "Maximum number of topics; a topic counts once for each broker name that has it.",
        minimum=1,
        limit="A new topic gets no route, with a line in the log; the broker stays registered.",
    )
    max_kv_name_size: int = setting(
        "maxKvNameSize",
        1024,
        "Maximum bytes of a namespace or key of the key-value configuration, as JSON.",
        minimum=1,
        limit="SYSTEM_ERROR to PUT_KV_CONFIG.",
    )
    max_kv_value_size: int = setting(
        "maxKvValueSize",
        64 * 1024,
        "Maximum bytes of a value of the key-value configuration, as JSON.",
        minimum=1,
        limit="SYSTEM_ERROR to PUT_KV_CONFIG.",
    )
    max_kv_config_size: int = setting(
        "maxKvConfigSize",
        4 * 1024 * 1024,
        "Maximum bytes of the whole key-value configuration, as JSON.",
        minimum=1,
        limit="SYSTEM_ERROR to PUT_KV_CONFIG; deleting always works.",
    )

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Build from a properties table; also returns the keys that nothing knows.

        Raises `ConfigError` for a value that cannot be used.
        """
        config, others = load_settings(
            cls, {key: _expand(key, value) for key, value in properties.items()}
        )
        return config, [key for key in others if key not in KNOWN_WITHOUT_EFFECT]

    def changed(self, properties: Mapping[str, str]) -> Self:
        """This configuration with some keys changed; keys that nothing knows are left out.

        Raises `ConfigError` for a value that cannot be used.
        """
        changes = {
            item.attribute: item.parse(_expand(item.key, properties[item.key]))
            for item in settings_of(type(self))
            if item.key in properties
        }
        return replace(self, **changes)

    def to_properties(self) -> dict[str, str]:
        """All settings as the table of a `.properties` file; unset ones are left out."""
        return {
            item.key: item.format(value)
            for item in settings_of(type(self))
            if (value := getattr(self, item.attribute)) is not None
        }


_PATH_KEYS = ("kvConfigPath", "configStorePath")
_HOME = re.compile(r"^\s*(?:~|\$\{user\.home\}|\$\{HOME\}|\$HOME)(?=/|$)")


def _expand(key: str, value: str) -> str:
    return _HOME.sub(lambda _: str(Path.home()), value) if key in _PATH_KEYS else value


#: Keys of RocketMQ's network layer that mean nothing here: thread pools and knobs of Netty.
KNOWN_WITHOUT_EFFECT = frozenset(
    {
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "useEpollNativeSelector",
        "useTLS",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
