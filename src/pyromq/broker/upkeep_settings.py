"""Settings of the services that watch the broker, of its extensions, and of its address server.

Most keys are RocketMQ's. `BrokerConfig` inherits these fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.base.address_server import DEFAULT_DOMAIN, DEFAULT_SUBGROUP
from pyromq.base.settings import setting
from pyromq.broker.replication_settings import ReplicationSettings


@dataclass(frozen=True, slots=True)
class UpkeepSettings(ReplicationSettings):
    """Protection of the broker, what it loads by name, and where it finds NameServers."""

    fetch_namesrv_addr_by_address_server: bool = setting(
        "fetchNamesrvAddrByAddressServer",
        False,
        "Without namesrvAddr, ask an address server for the NameServers every two minutes, by an "
        "HTTP GET of `http://<rmqAddressServerDomain>:8080/rocketmq/<rmqAddressServerSubGroup>`. "
        "A bad answer keeps the last good list.",
    )
    rmq_address_server_domain: str = setting(
        "rmqAddressServerDomain",
        DEFAULT_DOMAIN,
        "Ask this address server, given as a host name or host:port; "
        "see fetchNamesrvAddrByAddressServer.",
    )
    rmq_address_server_sub_group: str = setting(
        "rmqAddressServerSubGroup",
        DEFAULT_SUBGROUP,
        "Ask for the NameServers of this group; see fetchNamesrvAddrByAddressServer.",
    )
    message_store_plug_in: str = setting(
        "messageStorePlugIn",
        "",
        "Build the store with this Python factory: `module:attribute`, or an entry point of the "
        "group `pyromq.stores`. Java classes are refused.",
    )
    broker_hooks: str = setting(
        "brokerHooks",
        "",
        "Load these hooks, separated by commas, each as `module:attribute` or as an entry point of "
        "the group `pyromq.hooks`.",
    )
    filter_server_nums: int = setting(
        "filterServerNums",
        0,
        "Start this many filter servers.",
        minimum=0,
        ignored="RocketMQ 4.9.7 does not start filter servers either; use SQL92 filters "
        "(enablePropertyFilter)",
    )
    disable_consume_if_consumer_read_slowly: bool = setting(
        "disableConsumeIfConsumerReadSlowly",
        False,
        "Disable a consumer group whose pulls are farther behind the end of the log than "
        "consumerFallbehindThreshold, until an administrator enables it again.",
        live=True,
    )
    consumer_fallbehind_threshold: int = setting(
        "consumerFallbehindThreshold",
        16 << 30,
        "Call a group slow if its last pull was more than this many bytes behind the end of the "
        "log; see disableConsumeIfConsumerReadSlowly.",
        bits=64,
        minimum=0,
        live=True,
    )
    log_level: str | None = setting(
        "logLevel",
        None,
        "Log from this level on, and from others for single loggers: `INFO,pyromq.store=DEBUG`. "
        "The default is `--log-level`.",
        live=True,
    )
    loop_hang_millis: int = setting(
        "loopHangMillis",
        10_000,
        "Write the stacks of all threads to `debug` in the store's directory if the event loop "
        "does not respond for this many milliseconds; 0 never does. debugLockEnable lowers it to "
        "1000.",
        minimum=0,
        live=True,
    )
