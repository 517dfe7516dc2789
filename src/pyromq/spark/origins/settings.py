"""How to reach a cluster: plain values that travel to Spark tasks by pickle."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Default timeouts, in seconds. The second one is longer than a cluster takes to restart and
#: recover its stores.
REQUEST_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = 300.0


class ConnectionSettings(NamedTuple):
    """How to reach a cluster, and as whom."""

    name_servers: tuple[str, ...]
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False
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
        return options | ({"tls": "true"} if self.tls else {})
