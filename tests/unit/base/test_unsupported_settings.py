from __future__ import annotations

import pytest

from pyromq.base.settings import ConfigError, refuse_unsupported
from pyromq.base.unsupported_settings import BROKER, NAMESERVER, STORE

REFUSED = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}


@pytest.mark.parametrize(("key", "value"), REFUSED.items())
def test_settings_that_are_dangerous_to_ignore_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}={value}: expected (false|no value); ."):
        refuse_unsupported({key: value}, {**BROKER, **STORE})


def test_nothing_else_is_refused() -> None:
    refused = {item.key for item in (*BROKER.values(), *STORE.values()) if item.refused}
    assert refused == REFUSED.keys()
    assert [item.key for item in NAMESERVER.values() if item.refused] == []


def test_defaults_are_accepted() -> None:
    defaults = {item.key: item.default for item in (*BROKER.values(), *STORE.values())}
    properties = {key: value for key, value in defaults.items() if value is not None}
    refuse_unsupported(properties, {**BROKER, **STORE})


def test_keys_are_their_own() -> None:
    for table in (BROKER, STORE, NAMESERVER):
        assert all(item.key == key for key, item in table.items())


def test_refused_settings_are_changed_in_the_file_only() -> None:
    for key in REFUSED:
        assert {**BROKER, **STORE}[key].file_only
    assert not BROKER["sendMessageThreadPoolNums"].file_only
