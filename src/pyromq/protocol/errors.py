"""The one base of what clients of pyromq must be ready for.

`except RocketMQError` catches everything that a server, the network or a wrong use of the
client can cause; what it names exactly is in `client.errors` and `remoting.errors`.
"""

from __future__ import annotations


class RocketMQError(Exception):
    """Base of every exception of clients and connections."""
