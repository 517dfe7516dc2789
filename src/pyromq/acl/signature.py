"""Verify the signature of a request: who sent it, and that nobody changed it.

The content is the values of all extFields except `Signature`, ordered by name, followed by the body
(`protocol.wire.acl`). All clients sign it the same way: C++ and ONS clients add `OnsChannel`, Java
clients with enableStreamRequestType add `ReqT`, a `SecurityToken` is signed and not checked. All of
these are ordinary fields.

QUERY_MESSAGE may carry `_UNIQUE_KEY_QUERY`. Java clients sign it from 4.9.4 on and leave it out
before; both ways are accepted.

The signature covers neither the code nor the names of the fields, and has no time: it protects
against a forger who does not know the secret, not against one who records requests. TLS does.

Pure, and on the hot path: the order of the fields is cached, and HMAC starts from a prepared state.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from pyromq.acl.rules import Account
from pyromq.protocol.wire.acl import SIGNATURE, UNIQUE_KEY_QUERY


def is_signed_by(account: Account, fields: Mapping[str, str], body: bytes) -> bool:
    """Return whether a request carries the signature of an account. Takes constant time."""
    given = fields.get(SIGNATURE)
    if given is None:
        return False
    names = _orders[tuple(fields)]
    if _is_signature(account, given, names, fields, body):
        return True
    if UNIQUE_KEY_QUERY not in fields:
        return False
    shorter = tuple(name for name in names if name != UNIQUE_KEY_QUERY)
    return _is_signature(account, given, shorter, fields, body)


def _is_signature(
    account: Account, given: str, names: tuple[str, ...], fields: Mapping[str, str], body: bytes
) -> bool:
    inner, outer = account.keyed
    inner, outer = inner.copy(), outer.copy()
    # "surrogatepass" makes a lone surrogate a wrong signature instead of an exception.
    inner.update("".join([fields[name] for name in names]).encode("utf-8", "surrogatepass") + body)
    outer.update(inner.digest())
    expected = base64.b64encode(outer.digest())
    return hmac.compare_digest(expected, given.encode("utf-8", "surrogatepass"))


class _Orders(dict[tuple[str, ...], tuple[str, ...]]):
    """Names of fields in the order of their values in the content, by the names as they came."""

    def __missing__(self, names: tuple[str, ...]) -> tuple[str, ...]:
        order = tuple(sorted(name for name in names if name != SIGNATURE))
        # Callers choose the names: do not let them fill the memory.
        if sum(map(len, names)) <= _LONGEST_NAMES:
            if len(self) >= _MOST_ORDERS:
                self.clear()
            self[names] = order
        return order


_LONGEST_NAMES: Final = 1024
_MOST_ORDERS: Final = 1024
_orders: Final = _Orders()
