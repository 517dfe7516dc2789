"""Settings of brokers in the process of a test: local, small, and patient with the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pyromq.broker.config import BrokerConfig, load_broker_properties
from pyromq.store.config import MessageStoreConfig
from tests.support.patience import PATIENT_PROPERTIES

_PATIENT = load_broker_properties(
    {
        **PATIENT_PROPERTIES,
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": "0",
        # Cheap to make.
        "mappedFileSizeCommitLog": str(2 * 1024 * 1024),
        "mappedFileSizeConsumeQueue": str(20 * 4096),
        "maxHashSlotNum": "1024",
        "maxIndexNum": "4096",
    }
)


def local_broker(**changes: Any) -> BrokerConfig:
    """A broker that this machine alone reaches, on a free port."""
    return dataclasses.replace(_PATIENT.broker, **changes)


def small_store(root: Path, **changes: Any) -> MessageStoreConfig:
    """A store whose files are cheap to make."""
    return dataclasses.replace(_PATIENT.store, **{"store_path_root_dir": str(root), **changes})
