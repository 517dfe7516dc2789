"""The numpy types of the units in `units`, for modules that handle many at once.

Separate from `units`, because clients load that module and need no numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    CONSUME_QUEUE_FIELDS,
    EXTENSION_UNIT_FIELDS,
    EXTENSION_UNIT_SIZE,
    INDEX_ENTRY_FIELDS,
    INDEX_ENTRY_SIZE,
)

CONSUME_QUEUE_DTYPE: Final = np.dtype(CONSUME_QUEUE_FIELDS)
#: Without the bit map.
EXTENSION_UNIT_DTYPE: Final = np.dtype(EXTENSION_UNIT_FIELDS)
INDEX_ENTRY_DTYPE: Final = np.dtype(INDEX_ENTRY_FIELDS)

assert CONSUME_QUEUE_DTYPE.itemsize == CONSUME_QUEUE_ENTRY_SIZE
assert EXTENSION_UNIT_DTYPE.itemsize == EXTENSION_UNIT_SIZE
assert INDEX_ENTRY_DTYPE.itemsize == INDEX_ENTRY_SIZE
