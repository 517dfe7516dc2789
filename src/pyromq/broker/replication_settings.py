"""Settings of the broker that RocketMQ does not have: how a replica talks to its master.

`BrokerConfig` inherits these fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.base.settings import ConfigError, setting
from pyromq.broker.access_settings import AccessSettings


@dataclass(frozen=True, slots=True)
class ReplicationSettings(AccessSettings):
    """The credentials of a replica at its master."""

    replication_access_key: str | None = setting(
        "replicationAccessKey",
        None,
        "Sign the requests of this broker to its master and to NameServers with this access key, "
        "for servers with access control; needs replicationSecretKey.",
    )
    replication_secret_key: str | None = setting(
        "replicationSecretKey",
        None,
        "Sign these requests with this secret key. It is never printed.",
        secret=True,
    )

    def check_credentials(self) -> None:
        """Raise ConfigError if only one of the two keys is set."""
        if bool(self.replication_access_key) != bool(self.replication_secret_key):
            raise ConfigError(
                "replicationAccessKey, replicationSecretKey: expected both or neither"
            )
