"""The signature by which a server knows who sends a request.

The values of all extFields, in the order of their names, and then the body are signed with
HMAC-SHA1 under the secret key. Pure.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE: Final = "Signature"


def signature_of(ext_fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """What the field Signature must hold; a signature that is there already does not count."""
    # Java sorts by UTF-16 units; the names of fields are ASCII.
    values = (ext_fields[name] for name in sorted(ext_fields) if name != SIGNATURE)
    content = "".join(values).encode() + body
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def sign(
    ext_fields: dict[str, str],
    body: bytes,
    access_key: str,
    secret_key: str,
    security_token: str = "",
) -> None:
    """Add to a request's fields who sends it, and the signature."""
    ext_fields[ACCESS_KEY] = access_key
    if security_token:
        ext_fields[SECURITY_TOKEN] = security_token
    ext_fields[SIGNATURE] = signature_of(ext_fields, body, secret_key)
