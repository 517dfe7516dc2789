"""The numpy types read the same values as the structs."""

from __future__ import annotations

import numpy as np

from pyromq.protocol.message.unit_arrays import (
    CONSUME_QUEUE_DTYPE,
    EXTENSION_UNIT_DTYPE,
    INDEX_ENTRY_DTYPE,
)
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY, EXTENSION_UNIT, INDEX_ENTRY


def test_consume_queue_entry() -> None:
    data = CONSUME_QUEUE_ENTRY.pack(0x0102030405060708, 0x0A0B0C0D, -2)
    assert np.frombuffer(data, CONSUME_QUEUE_DTYPE)[0].tolist() == CONSUME_QUEUE_ENTRY.unpack(data)


def test_extension_unit() -> None:
    data = EXTENSION_UNIT.pack(34, -2, 0x0102030405060708, 14)
    assert np.frombuffer(data, EXTENSION_UNIT_DTYPE)[0].tolist() == EXTENSION_UNIT.unpack(data)


def test_index_entry() -> None:
    data = INDEX_ENTRY.pack(-1, 0x0102030405060708, 9, 10)
    assert np.frombuffer(data, INDEX_ENTRY_DTYPE)[0].tolist() == INDEX_ENTRY.unpack(data)
