from __future__ import annotations

import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from pyromq.tls.client import ClientTls, Tls, client_tls
from pyromq.tls.errors import TlsError
from tests.support.certificates import Certificates


def test_plain_unless_asked_for() -> None:
    assert client_tls(False) is None


def test_true_verifies_servers() -> None:
    tls = client_tls(True)
    assert tls is not None
    assert (tls.context.verify_mode, tls.context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls.arguments("broker-1") == {"ssl": tls.context, "server_hostname": "broker-1"}


def test_anything_is_accepted_if_asked_for() -> None:
    tls = client_tls(Tls(verify=False))
    assert tls is not None
    assert (tls.context.verify_mode, tls.context.check_hostname) == (ssl.CERT_NONE, False)


def test_a_context_of_ones_own_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    tls = client_tls(context)
    assert tls is not None
    assert tls.context is context


def test_files_are_loaded(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    tls = client_tls(certs.tls(server_name="rocketmq"))
    assert tls is not None
    assert len(tls.context.get_ca_certs()) == 1
    assert tls.arguments("10.0.0.1")["server_hostname"] == "rocketmq"
    with pytest.raises(TlsError, match=r"tls\.ca=.*nothing: No such file"):
        client_tls(certs.tls(ca=certs["nothing"]))
    with pytest.raises(TlsError, match="the key does not belong to the certificate"):
        client_tls(certs.tls(key=certs["server.key"]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cert": "c"}, "Tls.cert and Tls.key must be given together"),
        ({"ca": 1}, "Tls.ca: expected a text or None, got int"),
        ({"ca": ""}, "Tls.ca: expected a text"),
        ({"verify": "no"}, "Tls.verify: expected True or False"),
        ({"verify": False, "ca": "c"}, "Tls.verify=False contradicts Tls.ca"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Tls(**options)


def test_options_travel_and_keep_their_secret() -> None:
    options = Tls(ca="ca", cert="c", key="k", key_password="hush")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hush" not in repr(options)


def test_a_context_can_be_replaced() -> None:
    first, second = ssl.create_default_context(), ssl.create_default_context()
    tls = ClientTls(first)
    tls.context = second
    assert tls.arguments("h")["ssl"] is second
