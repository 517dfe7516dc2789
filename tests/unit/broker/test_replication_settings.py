from __future__ import annotations

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.config import (
    BrokerConfig,
    format_broker_properties,
    load_broker_properties,
)

KEYS = {"replicationAccessKey": "replica", "replicationSecretKey": "very-secret"}


def test_credentials_are_loaded_with_the_broker_s_settings() -> None:
    config, others = BrokerConfig.load(KEYS)
    assert (config.replication_access_key, config.replication_secret_key, others) == (
        "replica",
        "very-secret",
        [],
    )


@pytest.mark.parametrize("key", KEYS)
def test_one_key_alone_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="both or neither") as caught:
        BrokerConfig.load({key: "very-secret"})
    assert "very-secret" not in str(caught.value)


def test_the_secret_is_never_printed() -> None:
    loaded = load_broker_properties(KEYS)
    printed = format_broker_properties(loaded.broker, loaded.store)
    assert "replicationAccessKey=replica\nreplicationSecretKey=******\n" in printed
    assert "very-secret" not in printed + repr(loaded)


def test_a_printed_file_does_not_pass_its_mask_off_as_the_secret() -> None:
    with pytest.raises(ConfigError, match="expected the secret itself"):
        BrokerConfig.load({**KEYS, "replicationSecretKey": "******"})


def test_an_unset_secret_is_printed_as_unset() -> None:
    loaded = load_broker_properties({})
    assert "replicationSecretKey=\n" in format_broker_properties(loaded.broker, loaded.store)
