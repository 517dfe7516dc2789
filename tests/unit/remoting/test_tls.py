from __future__ import annotations

import ssl

from pyromq.remoting.tls import client_context


def test_plain_tcp_unless_asked_for() -> None:
    assert client_context(False) is None


def test_encrypted_without_proof() -> None:
    context = client_context(True)
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_a_context_of_ones_own_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    assert client_context(context) is context
