from __future__ import annotations

import ssl

import pytest

from pyromq.tls.errors import describe, describe_connect


def failure(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> ssl.SSLError:
    error = kind(1, f"[SSL: {reason}] something (_ssl.c:992)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            failure("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            "the server wants a client certificate (tlsv13 alert certificate required)",
        ),
        (failure("BAD_SIGNATURE"), "TLS failed: bad signature"),
        (failure("", ssl.SSLEOFError), "closed the connection during the TLS handshake"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_errors_say_what_is_wrong(error: Exception, text: str) -> None:
    assert text in describe(error)


def test_a_refused_certificate() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "Hostname mismatch, certificate is not valid for 'x'."
    text = "certificate refused: Hostname mismatch, certificate is not valid for 'x'"
    assert describe(error) == text


def test_a_server_that_hangs_up_may_have_no_tls() -> None:
    assert "tls.server.mode" in describe_connect(ConnectionResetError())
    assert "wrong version number" in describe_connect(failure("WRONG_VERSION_NUMBER"))
