"""Ask an address server for the NameServers, as RocketMQ's TopAddressing does.

An address server is any web server that answers a GET with one line, `host:port[;host:port]`. The
URL is `http://DOMAIN:8080/rocketmq/SUBGROUP`; a domain with a port replaces 8080. Only the first
line of an answer with status 200 counts. Proxies of the environment are not used.

`fetch` blocks: call it on a thread. It returns text; the caller checks the addresses.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

TIMEOUT_SECONDS: Final = 3.0
#: Seconds between two questions, as in RocketMQ.
FETCH_SECONDS: Final = 120.0
DEFAULT_DOMAIN: Final = "jmenv.tbsite.net"
DEFAULT_SUBGROUP: Final = "nsaddr"
_PORT: Final = 8080
#: Bytes that are read of an answer.
_MAX_ANSWER: Final = 64 * 1024


class AddressServerError(Exception):
    """No addresses; the message says why, and where they were asked for."""


def url_of(domain: str, subgroup: str) -> str:
    """Return the URL of a domain's address server."""
    host = domain if ":" in domain else f"{domain}:{_PORT}"
    return f"http://{host}/rocketmq/{subgroup}"


def fetch(url: str, timeout: float = TIMEOUT_SECONDS) -> str:
    """Return the first line of the answer. Raises AddressServerError."""
    # Here: every broker loads this module, few ask.
    import http.client
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise AddressServerError(f"{url} is not the URL of an address server")
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=timeout) as response:
            status: int = response.status
            body: bytes = response.read(_MAX_ANSWER + 1)
    except urllib.error.HTTPError as error:
        raise AddressServerError(f"{url} answered with status {error.code}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise AddressServerError(f"{url} does not answer: {reason}") from error
    if status != HTTPStatus.OK:
        raise AddressServerError(f"{url} answered with status {status}")
    if len(body) > _MAX_ANSWER:
        raise AddressServerError(f"{url} answered with more than {_MAX_ANSWER} bytes")
    lines = body.decode("utf-8", "replace").strip().splitlines()
    if not lines or not lines[0].strip():
        raise AddressServerError(f"{url} answered with an empty line")
    return lines[0].strip()
