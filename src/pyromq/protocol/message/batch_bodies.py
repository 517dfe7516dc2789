"""The body of a batch request from columns: many inner messages at once, with numpy.

    totalSize 4 | magic 4 | bodyCRC 4 | flag 4 | bodyLength 4, body
    | propertiesLength 2, properties

The layout is `record`'s. What stands before the bodies and between bodies and properties is
made here for all rows; joining them with the bodies is the caller's, who has them in columns
of his own kind.

Pure; called by Spark's tasks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyromq.protocol.message.record import INNER_BODY_LENGTH, INNER_FIXED_SIZE, INNER_HEAD_SIZE

_HEAD: Final = np.dtype(
    [
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("flag", ">i4"),
        ("body_length", ">i4"),
    ]
)
assert _HEAD.itemsize == INNER_HEAD_SIZE
assert _HEAD.fields is not None
assert _HEAD.fields["body_length"][1] == INNER_BODY_LENGTH
#: propertiesLength.
LENGTH_SIZE: Final = INNER_FIXED_SIZE - INNER_HEAD_SIZE


def inner_heads(
    body_lengths: NDArray[np.integer],
    properties_lengths: NDArray[np.integer],
    flags: NDArray[np.integer] | int = 0,
) -> NDArray[np.uint8]:
    """What stands before each body: one row of INNER_HEAD_SIZE bytes for each message.

    Magic number and CRC are 0: brokers look at neither.
    """
    heads = np.zeros(body_lengths.size, _HEAD)
    heads["total_size"] = body_lengths + properties_lengths + INNER_FIXED_SIZE
    heads["flag"] = flags
    heads["body_length"] = body_lengths
    return heads.view(np.uint8).reshape(-1, INNER_HEAD_SIZE)


def properties_lengths_between(properties_lengths: NDArray[np.integer]) -> NDArray[np.uint8]:
    """What stands between each body and its properties: LENGTH_SIZE bytes for each message.

    No length is above `properties.MAX_PROPERTIES`: the caller has seen to it.
    """
    return properties_lengths.astype(">u2").view(np.uint8).reshape(-1, LENGTH_SIZE)
