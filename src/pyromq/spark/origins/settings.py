"""How to reach a cluster: plain values that travel to Spark tasks by pickle."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyromq.tls.client import Tls

#: Default timeouts, in seconds. The second one is longer than a cluster takes to restart and
#: recover its stores.
REQUEST_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = 300.0


class ConnectionSettings(NamedTuple):
    """How to reach a cluster, and as whom."""

    name_servers: tuple[str, ...]
    access_key: str = ""
    secret_key: str = ""
    tls: bool | Tls = False
    #: In seconds, for one response or the next bytes of a long one.
    request_timeout: float = REQUEST_SECONDS
    #: How long a running read waits for servers that went away, in seconds.
    reconnect_timeout: float = RECONNECT_SECONDS

    def __repr__(self) -> str:
        """Leave the secret key out: settings appear in logs and errors."""
        return (
            f"ConnectionSettings({self.name_servers!r}, access_key={self.access_key!r}, "
            f"tls={self.tls}, request_timeout={self.request_timeout}, "
            f"reconnect_timeout={self.reconnect_timeout})"
        )

    def format_options(self) -> dict[str, str]:
        """Return these settings as options of the format "rocketmq", for reads and writes."""
        options = {"nameserver": ";".join(self.name_servers)}
        if self.access_key or self.secret_key:
            options |= {"accessKey": self.access_key, "secretKey": self.secret_key}
        return options | tls_options_of(self.tls)


#: The options of the format "rocketmq" for the fields of `Tls`.
TLS_FIELDS: Final = {
    "tlsCa": "ca",
    "tlsCert": "cert",
    "tlsKey": "key",
    "tlsKeyPassword": "key_password",
    "tlsServerName": "server_name",
}


def tls_options_of(tls: bool | Tls) -> dict[str, str]:
    """Return how connections are encrypted as options of the format "rocketmq"."""
    if isinstance(tls, bool):
        return {"tls": "true"} if tls else {}
    values = {option: getattr(tls, field) for option, field in TLS_FIELDS.items()}
    given = {option: value for option, value in values.items() if value is not None}
    return {"tls": "true", **given, **({} if tls.verify else {"tlsVerify": "false"})}
