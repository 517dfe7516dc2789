from __future__ import annotations

import base64
import hashlib
import hmac

from pyromq.protocol.wire.acl import sign, signature_of, signer
from pyromq.protocol.wire.frame import RemotingCommand


def test_values_in_the_order_of_their_names_then_the_body() -> None:
    fields = {"b": "2", "a": "1", "AccessKey": "me"}
    expected = base64.b64encode(hmac.new(b"secret", b"me12\x00body", hashlib.sha1).digest())
    assert signature_of(fields, b"\x00body", "secret") == expected.decode()


def test_a_signature_does_not_sign_itself() -> None:
    fields = {"a": "ä"}
    signature = signature_of(fields, b"", "k")
    assert signature_of({**fields, "Signature": signature}, b"", "k") == signature


def test_a_request_is_signed() -> None:
    fields = {"a": "1"}
    sign(fields, b"body", "me", "secret")
    signature = signature_of({"a": "1", "AccessKey": "me"}, b"body", "secret")
    assert fields == {"a": "1", "AccessKey": "me", "Signature": signature}
    sign(fields, b"body", "me", "secret", "token")
    assert fields["SecurityToken"] == "token"
    assert fields["Signature"] == signature_of(fields, b"body", "secret") != signature


def test_a_signer_of_commands() -> None:
    assert signer("", "") is None
    assert signer(None, None) is None
    sign_command = signer("me", "secret")
    assert sign_command is not None
    command = RemotingCommand(10, ext_fields={"a": "1"}, body=b"body")
    sign_command("10.0.0.1:10911", command)
    expected = {"a": "1"}
    sign(expected, b"body", "me", "secret")
    assert command.ext_fields == expected
