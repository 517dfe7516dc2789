from __future__ import annotations

import base64
import hashlib
import hmac

from pyromq.protocol.acl import signature_of


def test_values_in_the_order_of_their_names_then_the_body() -> None:
    fields = {"b": "2", "a": "1", "AccessKey": "me"}
    expected = base64.b64encode(hmac.new(b"secret", b"me12\x00body", hashlib.sha1).digest())
    assert signature_of(fields, b"\x00body", "secret") == expected.decode()


def test_a_signature_does_not_sign_itself() -> None:
    fields = {"a": "ä"}
    signature = signature_of(fields, b"", "k")
    assert signature_of({**fields, "Signature": signature}, b"", "k") == signature
