"""Settings of replication: the role of a broker, and how bytes reach its replicas.

RocketMQ's keys, except for `haReportFlushed` and `haAllowedReplicas`. `MessageStoreConfig` inherits
these fields and checks them with `check_replication`. Masters and replicas read them; pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from pyromq.base.networks import Network, parse_networks
from pyromq.base.settings import setting

#: Bytes of log in a frame. A Java replica never completes a frame above 4 MiB, with its header.
MAX_TRANSFER_BATCH: Final = 4 * 1024 * 1024 - 12


class BrokerRole(Enum):
    """The part of a broker in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Role, ports, intervals and limits of replication."""

    # ruff: noqa: RUF009 - `setting` returns a dataclass field
    broker_role: BrokerRole = setting(
        "brokerRole",
        BrokerRole.ASYNC_MASTER,
        "An ASYNC_MASTER accepts messages. A SYNC_MASTER also makes a send wait until a replica "
        "has its message. A SLAVE is a replica: it copies its master, serves consumers, and needs "
        "a brokerId above 0. Only a change between the two kinds of master is live.",
        important=True,
        live=True,
    )
    ha_listen_port: int = setting(
        "haListenPort",
        10912,
        "Serve replicas on this port. A broker always uses listenPort + 1.",
        minimum=0,
        maximum=65535,
    )
    ha_allowed_replicas: str | None = setting(
        "haAllowedReplicas",
        None,
        "Accept replicas only from these addresses or networks, such as 10.0.0.7,10.1.0.0/16, "
        "separated by commas. The default accepts any address.",
    )
    ha_send_heartbeat_interval: int = setting(
        "haSendHeartbeatInterval",
        5000,
        "Send a heartbeat to the other side of a replication connection after this many "
        "milliseconds of silence.",
        minimum=1,
    )
    ha_housekeeping_interval: int = setting(
        "haHousekeepingInterval",
        20_000,
        "Close a replication connection after this many milliseconds of silence.",
        minimum=1,
    )
    ha_transfer_batch_size: int = setting(
        "haTransferBatchSize",
        32 * 1024,
        "Send at most this many bytes of the log to a replica at once.",
        minimum=1,
        maximum=MAX_TRANSFER_BATCH,
        live=True,
    )
    ha_master_address: str | None = setting(
        "haMasterAddress",
        None,
        "Replicate from the master whose replication port is at this host:port. The default comes "
        "from the NameServer.",
        important=True,
    )
    ha_slave_fallbehind_max: int = setting(
        "haSlaveFallbehindMax",
        256 * 1024 * 1024,
        "With SYNC_MASTER, answer SLAVE_NOT_AVAILABLE to a send while every replica lags by this "
        "many bytes or more.",
        minimum=0,
        live=True,
    )
    slave_timeout: int = setting(
        "slaveTimeout",
        3000,
        "With SYNC_MASTER, answer FLUSH_SLAVE_TIMEOUT to a send after this many milliseconds.",
        minimum=1,
        live=True,
    )
    ha_report_flushed: bool = setting(
        "haReportFlushed",
        False,
        "Report to the master only what is fsynced. With false, a replica reports what it has "
        "written, as in RocketMQ.",
    )
    offset_check_in_slave: bool = setting(
        "offsetCheckInSlave",
        False,
        "Let a replica correct consumer offsets that are outside its queue.",
    )

    def check_replication(self) -> None:
        """Raise ConfigError for a value that only looks right."""
        parse_networks("haAllowedReplicas", self.ha_allowed_replicas)

    @property
    def allowed_replicas(self) -> tuple[Network, ...]:
        """The networks that replicas may connect from; empty if all may."""
        return parse_networks("haAllowedReplicas", self.ha_allowed_replicas)
