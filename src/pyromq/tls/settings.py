"""RocketMQ's `tls.*` settings, as fields of a server's configuration.

The same keys may be in the server's own file and in the TLS file. As in RocketMQ, the TLS file
wins. A default TLS file that does not exist is skipped.

Where RocketMQ would run with less protection than its operator asked for, the start fails instead:
unknown words, client certificates that are required but not verified, files that are not there.

`TlsSettings` is a base class of the configurations of broker and NameServer. Used at start-up, on
the main thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pyromq.base.settings import ConfigError, load_settings, setting, with_environment
from pyromq.protocol.java.properties import PropertiesError, parse_properties

#: RocketMQ's default of tls.config.file.
DEFAULT_FILE: Final = "/etc/rocketmq/tls.properties"
TLS_FILE_KEY: Final = "tls.config.file"


class TlsMode(Enum):
    """What a port does with the first byte of a connection."""

    #: Plain connections only.
    DISABLED = "disabled"
    #: Both kinds.
    PERMISSIVE = "permissive"
    #: TLS only; plain connections are closed without an answer.
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether clients present a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of a server: its ports, and its own connections to other servers."""

    tls_server_mode: str = setting(
        "tls.server.mode",
        "disabled",
        "Serve plain connections only (disabled), plain and TLS connections (permissive), or TLS "
        "connections only (enforcing). The first byte of a connection tells them apart. RocketMQ's "
        "default is permissive, with a certificate that nobody can verify.",
    )
    tls_config_file: str = setting(
        "tls.config.file",
        DEFAULT_FILE,
        "Read further tls.* settings from this file; they override those of the server's own file.",
        path=True,
    )
    tls_test_mode_enable: bool = setting(
        "tls.test.mode.enable",
        False,
        "Use a self-signed certificate made at the start, and accept any certificate of other "
        "servers; all paths below are ignored. Needs the extra pyromq[tls]. RocketMQ's default is "
        "true.",
    )
    tls_server_key_path: str | None = setting(
        "tls.server.keyPath", None, "Read the server's private key from this PEM file.", path=True
    )
    tls_server_key_password: str | None = setting(
        "tls.server.keyPassword",
        None,
        "Decrypt the server's private key with this password. It is never printed.",
        secret=True,
    )
    tls_server_cert_path: str | None = setting(
        "tls.server.certPath",
        None,
        "Read the server's certificate chain from this PEM file.",
        path=True,
    )
    tls_server_need_client_auth: str = setting(
        "tls.server.need.client.auth",
        "none",
        "Ask clients for a certificate: none, optional or require. Certificates are verified with "
        "tls.server.trustCertPath.",
    )
    tls_server_auth_client: bool = setting(
        "tls.server.authClient",
        True,
        "Verify the certificates of clients. false is accepted only with "
        "tls.server.need.client.auth=none. RocketMQ's default is false.",
    )
    tls_server_trust_cert_path: str | None = setting(
        "tls.server.trustCertPath",
        None,
        "Accept client certificates that were signed by the authorities in this PEM file.",
        path=True,
    )
    tls_enable: bool | None = setting(
        "tls.enable",
        None,
        "Use TLS for connections to NameServers, to the master and to other brokers; unset means "
        "true exactly if tls.server.mode is enforcing.",
    )
    use_tls: bool = setting("useTLS", False, "Do the same as tls.enable=true if that is unset.")
    tls_client_key_path: str | None = setting(
        "tls.client.keyPath",
        None,
        "Read the private key for connections to other servers from this PEM file.",
        path=True,
    )
    tls_client_key_password: str | None = setting(
        "tls.client.keyPassword",
        None,
        "Decrypt that private key with this password. It is never printed.",
        secret=True,
    )
    tls_client_cert_path: str | None = setting(
        "tls.client.certPath",
        None,
        "Present the certificate chain in this PEM file to other servers.",
        path=True,
    )
    tls_client_auth_server: bool = setting(
        "tls.client.authServer",
        True,
        "Verify the certificates of other servers. RocketMQ's default is false.",
    )
    tls_client_trust_cert_path: str | None = setting(
        "tls.client.trustCertPath",
        None,
        "Accept certificates of other servers that were signed by the authorities in this PEM "
        "file; unset means the system's authorities.",
        path=True,
    )
    tls_client_check_host_name: bool = setting(
        "tls.client.checkHostName",
        True,
        "Refuse a certificate of another server that does not name the host of its address. "
        "RocketMQ never checks it.",
    )
    tls_replication_mode: str | None = setting(
        "tls.replication.mode",
        None,
        "Use this mode on the replication port; unset means tls.server.mode. A replica uses TLS "
        "unless this is disabled and if tls.enable is true. Masters and replicas of RocketMQ speak "
        "no TLS there.",
    )
    tls_handshake_seconds: int = setting(
        "tlsHandshakeSeconds",
        10,
        "Seconds in which a TLS handshake must end, from its first byte.",
        minimum=1,
        limit="The connection is closed.",
    )
    max_tls_handshakes: int = setting(
        "maxTlsHandshakes",
        1000,
        "Maximum number of TLS handshakes in progress, on all ports together.",
        minimum=1,
        limit="The connection whose handshake began first is closed.",
    )

    @property
    def mode(self) -> TlsMode:
        """Return the mode of the ports for clients."""
        return TlsMode(self.tls_server_mode.strip())

    @property
    def replication_mode(self) -> TlsMode:
        """Return the mode of the replication port."""
        word = self.tls_replication_mode
        return self.mode if word is None else TlsMode(word.strip())

    @property
    def client_auth(self) -> ClientAuth:
        """Return whether clients present a certificate."""
        return ClientAuth(self.tls_server_need_client_auth.strip().lower())

    @property
    def verifies_clients(self) -> bool:
        """Whether clients are asked for a certificate, which is then verified."""
        return self.tls_server_auth_client and self.client_auth is not ClientAuth.NONE

    @property
    def connects_with_tls(self) -> bool:
        """Whether this server's own connections use TLS."""
        if self.tls_enable is not None:
            return self.tls_enable
        return self.use_tls or self.mode is TlsMode.ENFORCING

    @property
    def serves_tls(self) -> bool:
        """Whether any port takes TLS connections."""
        return {self.mode, self.replication_mode} != {TlsMode.DISABLED}

    def tls_values(self) -> dict[str, Any]:
        """Return the fields, for another configuration that shares them."""
        return {field.name: getattr(self, field.name) for field in fields(TlsSettings)}

    def check_tls(self) -> None:
        """Raise ConfigError for settings that contradict each other; files are not read."""
        _check_word("tls.server.mode", self.tls_server_mode.strip(), TlsMode)
        if self.tls_replication_mode is not None:
            _check_word("tls.replication.mode", self.tls_replication_mode.strip(), TlsMode)
        auth = self.tls_server_need_client_auth.strip().lower()
        _check_word("tls.server.need.client.auth", auth, ClientAuth)
        if self.tls_test_mode_enable:
            return
        if self.serves_tls:
            self._check_server()
        if bool(self.tls_client_key_path) != bool(self.tls_client_cert_path):
            raise ConfigError(
                "tls.client.keyPath, tls.client.certPath: expected both or neither; a client "
                "certificate needs its key"
            )

    def _check_server(self) -> None:
        for key, path in (
            ("tls.server.certPath", self.tls_server_cert_path),
            ("tls.server.keyPath", self.tls_server_key_path),
        ):
            if not path:
                raise ConfigError(
                    f"{key}=: expected a PEM file, because a port serves TLS (tls.server.mode); "
                    "for tests, tls.test.mode.enable=true makes a certificate at the start"
                )
        if self.client_auth is ClientAuth.NONE:
            return
        if not self.tls_server_auth_client:
            raise ConfigError(
                "tls.server.authClient=false: expected true with tls.server.need.client.auth="
                f"{self.client_auth.value}; certificates that are not verified keep nobody out"
            )
        if not self.tls_server_trust_cert_path:
            raise ConfigError(
                "tls.server.trustCertPath=: expected a PEM file with the authorities of client "
                f"certificates, with tls.server.need.client.auth={self.client_auth.value}"
            )


def _check_word(key: str, word: str, words: type[Enum]) -> None:
    values = [each.value for each in words]
    if word not in values:
        raise ConfigError(f"{key}={word:.100}: expected {', '.join(values[:-1])} or {values[-1]}")


def tls_file_of(properties: Mapping[str, str]) -> str:
    """Return the path of the TLS file of a server. Raises ConfigError."""
    known = {TLS_FILE_KEY: properties[TLS_FILE_KEY]} if TLS_FILE_KEY in properties else {}
    settings, _ = load_settings(TlsSettings, known, str(Path.home()))
    return settings.tls_config_file


def with_tls_file(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a server's file, overridden by those of its TLS file.

    A value `${NAME}` in the TLS file is an environment variable. Raise ConfigError for a TLS file
    that cannot be read, has other settings, or names a variable that is not set. Only the default
    file may be missing.
    """
    path = tls_file_of(properties)
    try:
        given = with_environment(parse_properties(Path(path).read_bytes()), os.environ)
    except FileNotFoundError as error:
        if path == DEFAULT_FILE:
            return dict(properties)
        raise ConfigError(f"{TLS_FILE_KEY}={path}: {error.strerror}") from None
    except OSError as error:
        raise ConfigError(f"{TLS_FILE_KEY}={path}: cannot be read: {error.strerror}") from None
    except (PropertiesError, ConfigError) as error:
        raise ConfigError(f"{TLS_FILE_KEY}={path}: {error}") from None
    for key in given:
        if not key.startswith("tls.") or key == TLS_FILE_KEY:
            raise ConfigError(f"{TLS_FILE_KEY}={path}: {key:.100} does not belong into a TLS file")
    return {**properties, **given}
