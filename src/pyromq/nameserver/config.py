"""The NameServer's configuration: RocketMQ's NamesrvConfig and its NettyServerConfig.

Names and defaults are RocketMQ 4.9.7's. RocketMQ's keys without a field are listed in
`base.unsupported_settings`.

Loaded at start-up by the command line. Immutable: an administrator's change over the wire
(`changed`) makes a new instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pyromq.acl.settings import AclMode, ServerSettings, check_files
from pyromq.base.log_levels import parse_levels
from pyromq.base.settings import (
    ineffective_warnings,
    load_settings,
    refuse_unsupported,
    setting,
    setting_warnings,
    settings_of,
)
from pyromq.base.unsupported_settings import NAMESERVER
from pyromq.metrics.settings import ExporterType, MetricsSettings, check_metrics
from pyromq.remoting.limits import PeerSettings
from pyromq.remoting.socket_options import SocketSettings, check_water_marks
from pyromq.tls.settings import TlsSettings, with_tls_file

#: RocketMQ's directory for the NameServer's files, in the home directory.
_HOME_FOLDER = "namesrv"

_PEERS = PeerSettings(received=128 << 20, unsent=256 << 20)
_SOCKETS = SocketSettings()
#: Not the broker's, because the two often share a machine.
_METRICS = MetricsSettings(port=5558)
_ACCESS = ServerSettings("audit.log beside the file of kvConfigPath")
_REGISTRATION_REFUSED = (
    "The registration fails with SYSTEM_ERROR; registered brokers stay registered."
)
_PUT_REFUSED = "PUT_KV_CONFIG fails with SYSTEM_ERROR."


def _default_path(name: str) -> str:
    return str(Path.home() / _HOME_FOLDER / name)


@dataclass(frozen=True, slots=True)
class NamesrvConfig(TlsSettings):
    """Settings of a NameServer."""

    listen_port: int = setting(
        "listenPort",
        9876,
        "Listen on this TCP port; 0 takes any free port.",
        minimum=0,
        maximum=65535,
        important=True,
    )
    bind_address: str = setting("bindAddress", "0.0.0.0", "Listen on this local address.")  # noqa: S104 brokers and clients are on other machines
    server_channel_max_idle_time_seconds: int = setting(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "Close a connection after this many seconds without traffic.",
        minimum=1,
        limit="The NameServer closes the connection.",
    )
    server_socket_snd_buf_size: int = _SOCKETS.server_socket_snd_buf_size
    server_socket_rcv_buf_size: int = _SOCKETS.server_socket_rcv_buf_size
    write_buffer_high_water_mark: int = _SOCKETS.write_buffer_high_water_mark
    write_buffer_low_water_mark: int = _SOCKETS.write_buffer_low_water_mark
    server_socket_backlog: int = _SOCKETS.server_socket_backlog
    max_connections: int = _PEERS.max_connections
    max_connections_per_address: int = _PEERS.max_connections_per_address
    max_received_bytes: int = _PEERS.max_received_bytes
    max_unsent_bytes: int = _PEERS.max_unsent_bytes
    max_frame_seconds: int = _PEERS.max_frame_seconds
    kv_config_path: str = setting(
        "kvConfigPath",
        doc="Keep the key-value configuration in this file.",
        default_factory=lambda: _default_path("kvConfig.json"),
        important=True,
        path=True,
    )
    config_store_path: str = setting(
        "configStorePath",
        doc="Save settings that an administrator changes at run time in this file.",
        default_factory=lambda: _default_path("namesrv.properties"),
        important=True,
        path=True,
    )
    order_message_enable: bool = setting(
        "orderMessageEnable",
        False,
        "Return the order configuration of a topic with its route.",
        live=True,
    )
    cluster_test: bool = setting(
        "clusterTest",
        False,
        "Ask the production NameServers, given by the NAMESRV_ADDR environment variable, for the "
        "routes of unknown topics; implies orderMessageEnable.",
        live=True,
    )
    product_env_name: str = setting(
        "productEnvName",
        "center",
        "Ask the address server for the NameServers of this production environment.",
        ignored="production NameServers come from NAMESRV_ADDR (clusterTest)",
    )
    log_level: str | None = setting(
        "logLevel",
        None,
        "Log from this level on, and from others for single loggers: "
        "`INFO,pyromq.nameserver=DEBUG`. The default is `--log-level`.",
        live=True,
    )
    rocketmq_home: str | None = _ACCESS.rocketmq_home
    acl_enable: bool = setting(
        "aclEnable",
        False,
        "Take registrations only from peers and administrators, and changes only from "
        "administrators, by the accounts in conf/plain_acl.yml and conf/acl below rocketmqHome.",
    )
    acl_mode: AclMode = setting(  # noqa: RUF009 - returns a dataclass field
        "aclMode",
        AclMode.strict,
        "Read the files as brokers with this aclMode do: strict refuses unknown words in them. "
        "What a NameServer checks is the same in both modes.",
    )
    acl_plain_file: str = _ACCESS.acl_plain_file
    audit_log_path: str | None = _ACCESS.audit_log_path
    audit_log_max_bytes: int = _ACCESS.audit_log_max_bytes
    audit_log_files: int = _ACCESS.audit_log_files
    metrics_exporter_type: ExporterType = _METRICS.metrics_exporter_type
    metrics_prom_exporter_port: int = _METRICS.metrics_prom_exporter_port
    metrics_prom_exporter_host: str | None = _METRICS.metrics_prom_exporter_host
    metrics_label: str = _METRICS.metrics_label
    metrics_otel_cardinality_limit: int = _METRICS.metrics_otel_cardinality_limit
    max_brokers: int = setting(
        "maxBrokers",
        5_000,
        "Register at most this many brokers; a broker counts once for each of its addresses.",
        minimum=1,
        limit=_REGISTRATION_REFUSED,
    )
    max_brokers_per_connection: int = setting(
        "maxBrokersPerConnection",
        256,
        "Register at most this many brokers over one connection, and at one address.",
        minimum=1,
        limit=_REGISTRATION_REFUSED,
    )
    max_registration_size: int = setting(
        "maxRegistrationSize",
        16 * 1024 * 1024,
        "Accept registrations of at most this many bytes, after decompression.",
        minimum=1024,
        limit="The registration fails with SYSTEM_ERROR.",
    )
    max_topics_per_broker: int = setting(
        "maxTopicsPerBroker",
        100_000,
        "Keep at most this many topics of one broker name.",
        minimum=1,
        limit="A registration with more topics fails with SYSTEM_ERROR; topics above the limit "
        "that a broker adds over time get no route.",
    )
    max_topics: int = setting(
        "maxTopics",
        500_000,
        "Keep at most this many topics; a topic counts once for each broker name that has it.",
        minimum=1,
        limit="A new topic gets no route, with a log line; the broker stays registered.",
    )
    max_kv_name_size: int = setting(
        "maxKvNameSize",
        1024,
        "Accept namespaces and keys of at most this many bytes of JSON in the key-value "
        "configuration.",
        minimum=1,
        limit=_PUT_REFUSED,
    )
    max_kv_value_size: int = setting(
        "maxKvValueSize",
        64 * 1024,
        "Accept values of at most this many bytes of JSON in the key-value configuration.",
        minimum=1,
        limit=_PUT_REFUSED,
    )
    max_kv_config_size: int = setting(
        "maxKvConfigSize",
        4 * 1024 * 1024,
        "Keep at most this many bytes of JSON in the key-value configuration.",
        minimum=1,
        limit=f"{_PUT_REFUSED} Deleting always works.",
    )

    def __post_init__(self) -> None:
        parse_levels(self.log_level)
        check_water_marks(self)
        self.check_tls()
        check_metrics(self)
        if self.acl_enable:
            check_files(self)

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Build from a properties table; also return a warning for each key without effect.

        Raise ConfigError for an invalid value and for a setting that must not be ignored.
        """
        properties = with_tls_file(properties)
        warnings = setting_warnings(properties, [cls], NAMESERVER)
        return load_settings(cls, properties, str(Path.home()))[0], warnings

    def changed(self, properties: Mapping[str, str]) -> Self:
        """Return this configuration with some keys changed; skip keys without a field.

        Raise ConfigError for an invalid value and for a setting that must not be ignored.
        """
        refuse_unsupported(properties, NAMESERVER)
        changes = {
            item.attribute: item.parse(properties[item.key], str(Path.home()))
            for item in settings_of(type(self))
            if item.key in properties
        }
        return replace(self, **changes)

    @classmethod
    def ineffective(cls, properties: Mapping[str, str]) -> list[str]:
        """Return a warning for each reason why keys of RocketMQ have no effect."""
        return ineffective_warnings(properties, [cls], NAMESERVER)

    def to_properties(self) -> dict[str, str]:
        """Return the table of a `.properties` file, without unset settings and secrets."""
        return {
            item.key: item.format(value)
            for item in settings_of(type(self))
            if (value := getattr(self, item.attribute)) is not None and not item.secret
        }
