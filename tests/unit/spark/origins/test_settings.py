from __future__ import annotations

import pickle

from pyromq.spark.option_values import TLS_OPTIONS, GivenOptions
from pyromq.spark.origins import broker
from pyromq.spark.origins.settings import ConnectionSettings, tls_options_of
from pyromq.tls.client import Tls


def test_settings_travel_and_keep_their_secret() -> None:
    settings = ConnectionSettings(("127.0.0.1:9876",), "someone", "hush", tls=True)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "someone" in repr(settings)
    assert "hush" not in repr(settings)


def test_the_documented_import_path_works() -> None:
    assert broker.ConnectionSettings is ConnectionSettings


def test_options_of_the_format() -> None:
    assert ConnectionSettings(("a:1", "b:2")).format_options() == {"nameserver": "a:1;b:2"}
    assert ConnectionSettings(("a:1",), "k", "s", True).format_options() == {
        "nameserver": "a:1",
        "accessKey": "k",
        "secretKey": "s",
        "tls": "true",
    }


def test_tls_as_options_of_the_format() -> None:
    tls = Tls(ca="ca", cert="c", key="k", key_password="p", server_name="s")
    options = {
        "tls": "true",
        "tlsCa": "ca",
        "tlsCert": "c",
        "tlsKey": "k",
        "tlsKeyPassword": "p",
        "tlsServerName": "s",
    }
    assert tls_options_of(tls) == options
    assert GivenOptions(options, TLS_OPTIONS).tls() == tls
    insecure = tls_options_of(Tls(verify=False))
    assert insecure == {"tls": "true", "tlsVerify": "false"}
    assert GivenOptions(insecure, TLS_OPTIONS).tls() == Tls(verify=False)
    assert tls_options_of(False) == {}
    assert "p" not in repr(ConnectionSettings(("a:1",), tls=Tls(key_password="pass"))).split("'")
