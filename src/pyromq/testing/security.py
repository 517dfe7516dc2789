"""Access control and TLS of a cluster in a test process: files, settings, and its own clients.

    security = Security(tls=True, acl=[{"accessKey": "reader-key", "secretKey": "reader-secret"}])
    security.prepare(directory)

With `tls`, every port takes only connections with a certificate that `prepare` made. With `acl`,
brokers and the NameServer check every request in strict mode. There are three accounts: an
operator, as which the cluster itself acts, a peer for the brokers, and one for the test's clients,
which may use all topics and groups. A test adds others.

Used by `cluster`. `prepare` blocks; it runs once for each start, before the servers.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyromq.acl.files import (
    ACCESS_KEY,
    ACCOUNTS,
    ADMIN,
    DEFAULT_GROUP,
    DEFAULT_TOPIC,
    PEER,
    SECRET_KEY,
    AclFiles,
)
from pyromq.client.options import ClientOptions
from pyromq.protocol.wire import acl
from pyromq.remoting.client import RemotingClient
from pyromq.tls.certificates import make_test_certificates
from pyromq.tls.client import Tls, client_tls

OPERATOR: Final = "testing-operator"
BROKERS: Final = "testing-brokers"
CLIENTS: Final = "testing-clients"

#: An account as in conf/plain_acl.yml.
AccountFields = Mapping[str, Any]


class Security:
    """How the servers of one cluster are protected, and what clients need."""

    def __init__(self, *, tls: bool = False, acl: bool | Sequence[AccountFields] = False) -> None:
        """`acl` may be a list of accounts, which are added to those of the cluster."""
        self._has_tls = tls
        self._has_acl = acl is not False
        self._accounts = [] if isinstance(acl, bool) else [dict(each) for each in acl]
        self._tls: bool | Tls = False
        self._secrets = {key: secrets.token_urlsafe(24) for key in (OPERATOR, BROKERS, CLIENTS)}
        #: Settings of every server, in RocketMQ's words.
        self.server_settings: dict[str, str] = {}
        #: Further settings of brokers.
        self.broker_settings: dict[str, str] = {}

    def prepare(self, directory: Path) -> None:
        """Write certificates and accounts below `directory`.

        Raises TlsError or AclFileError, also if the package that makes or reads them is missing.
        """
        self.server_settings, self.broker_settings = {}, {}
        if self._has_tls:
            certs = directory.absolute() / "certs"
            make_test_certificates(certs)
            self._tls = Tls(
                ca=str(certs / "ca.pem"),
                cert=str(certs / "client.pem"),
                key=str(certs / "client.key"),
            )
            self.server_settings["tls.config.file"] = str(certs / "tls.properties")
        if self._has_acl:
            home = directory.absolute() / "home"
            files = AclFiles(home, strict=True)
            files.write(files.default, {ACCOUNTS: [*self._own_accounts(), *self._accounts]})
            self.server_settings |= {"aclEnable": "true", "rocketmqHome": str(home)}
            self.broker_settings = {
                "aclMode": "strict",
                "replicationAccessKey": BROKERS,
                "replicationSecretKey": self._secrets[BROKERS],
            }

    def _own_accounts(self) -> list[dict[str, Any]]:
        rights: dict[str, dict[str, Any]] = {
            OPERATOR: {ADMIN: True},
            BROKERS: {PEER: True},
            CLIENTS: {DEFAULT_TOPIC: "PUB|SUB", DEFAULT_GROUP: "SUB"},
        }
        return [{ACCESS_KEY: key, SECRET_KEY: self._secrets[key], **rights[key]} for key in rights]

    @property
    def client_options(self) -> ClientOptions:
        """Return what the test's clients need."""
        return self._options(CLIENTS)

    @property
    def operator_options(self) -> ClientOptions:
        """Return what the cluster's own clients need."""
        return self._options(OPERATOR)

    def _options(self, access_key: str) -> ClientOptions:
        options: ClientOptions = {}
        if self._has_tls:
            options["tls"] = self._tls
        if self._has_acl:
            options["access_key"] = access_key
            options["secret_key"] = self._secrets[access_key]
        return options

    def operator(self) -> RemotingClient:
        """Return a client that may do everything."""
        keys = (OPERATOR, self._secrets[OPERATOR]) if self._has_acl else (None, None)
        return RemotingClient(tls=client_tls(self._tls), before_request=acl.signer(*keys))
