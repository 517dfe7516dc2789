"""Settings of the broker that RocketMQ does not have: how a replica talks to its master.

`BrokerConfig` inherits these fields.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from pyromq.acl.settings import files_of
from pyromq.base.settings import MASK, ConfigError, setting, shown
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

    def check_registration(self, host: str) -> None:
        """Check that a NameServer with the same files would let this broker register.

        `host` is the address that the NameServer sees. Reads the files; raises ConfigError,
        AclFileError or OSError.
        """
        rules = files_of(self, strict=self.is_acl_strict).load()
        key, secret = self.replication_access_key, self.replication_secret_key
        if rules.is_white(host):
            return
        if key is None or secret is None:
            raise ConfigError(
                "aclEnable=true: expected replicationAccessKey and replicationSecretKey of an "
                "account with peer: true, because the NameServer checks registrations; "
                "`pyromq acl init` makes such an account"
            )
        account = rules.accounts.get(key)
        if account is None or not (account.is_peer or account.is_admin):
            raise ConfigError(
                f"replicationAccessKey={shown(key)}: expected an account with peer: true or "
                f"admin: true in the files below {self.rocketmq_home}"
            )
        if not hmac.compare_digest(secret.encode(), account.secret_key.encode()):
            raise ConfigError(f"replicationSecretKey={MASK}: expected the secret key of {key}")
