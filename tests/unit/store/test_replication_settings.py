from __future__ import annotations

from ipaddress import ip_network

import pytest

from pyromq.base.settings import ConfigError
from pyromq.store.config import MessageStoreConfig
from pyromq.store.replication_settings import MAX_TRANSFER_BATCH


def test_replicas_are_allowed_from_anywhere_by_default() -> None:
    assert MessageStoreConfig().allowed_replicas == ()
    assert MessageStoreConfig.load({"haAllowedReplicas": " , "})[0].allowed_replicas == ()


def test_allowed_replicas_are_addresses_and_networks() -> None:
    config, _ = MessageStoreConfig.load({"haAllowedReplicas": "10.0.0.7, 10.1.2.3/16,fd00::/8"})
    assert config.allowed_replicas == (
        ip_network("10.0.0.7/32"),
        ip_network("10.1.0.0/16"),
        ip_network("fd00::/8"),
    )


@pytest.mark.parametrize("text", ["replica-2", "10.0.0", "10.0.0.1/33", "10.0.0.1:10912", "::g"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^haAllowedReplicas=.* is neither$"):
        MessageStoreConfig.load({"haAllowedReplicas": f"10.0.0.7,{text}"})


def test_a_frame_fits_into_the_buffer_of_a_java_replica() -> None:
    assert MAX_TRANSFER_BATCH + 12 == 4 * 1024 * 1024
    with pytest.raises(ConfigError, match=r"^haTransferBatchSize=.*from 1 to 4194292$"):
        MessageStoreConfig.load({"haTransferBatchSize": str(MAX_TRANSFER_BATCH + 1)})
