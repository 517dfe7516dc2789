from __future__ import annotations

import pickle

from pyromq.spark.origins import broker
from pyromq.spark.origins.settings import ConnectionSettings


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
