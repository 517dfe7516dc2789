"""Sign requests, so that a server can authenticate the sender.

The signature is an HMAC-SHA1 with the secret key over the values of all extFields, in the order of
their names, followed by the body. Pure.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

#: Signs a command for a connection.
Signer: TypeAlias = Callable[[object, Any], None]

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE: Final = "Signature"
#: Marks a query for a unique key; some clients leave it out of the content.
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def signature_of(ext_fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Return the value of the Signature field; ignores an existing one."""
    # Java sorts by UTF-16 units, which is the same because field names are ASCII.
    values = (ext_fields[name] for name in sorted(ext_fields) if name != SIGNATURE)
    content = "".join(values).encode() + body
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def signer(access_key: str | None, secret_key: str | None) -> Signer | None:
    """Return a function that signs commands, for `RemotingClient`; None without a key."""
    if not access_key or not secret_key:
        return None

    def sign_command(_: object, command: Any) -> None:
        sign(command.ext_fields, command.body, access_key, secret_key)

    return sign_command


def sign(
    ext_fields: dict[str, str],
    body: bytes,
    access_key: str,
    secret_key: str,
    security_token: str = "",
) -> None:
    """Add the access key, the security token if there is one, and the signature to a request."""
    ext_fields[ACCESS_KEY] = access_key
    if security_token:
        ext_fields[SECURITY_TOKEN] = security_token
    ext_fields[SIGNATURE] = signature_of(ext_fields, body, secret_key)
