"""The base class of all errors that clients of pyromq raise.

`except RocketMQError` catches every error caused by a server, by the network or by misuse of the
client. `client.errors` and `remoting.errors` define the specific classes.
"""

from __future__ import annotations


class RocketMQError(Exception):
    """Base class of every exception that clients and connections raise."""
