"""Encode the inner messages of a batch request from columns, with numpy.

    totalSize 4 | magic 4 | bodyCRC 4 | flag 4 | bodyLength 4, body
    | propertiesLength 2, properties

`record` defines the layout. This module makes the bytes before the bodies, and those between bodies
and properties, for all rows at once. The caller joins them with the bodies and properties, which it
holds in its own kind of columns.

Pure; called by Spark tasks.
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
#: Bytes of propertiesLength.
LENGTH_SIZE: Final = INNER_FIXED_SIZE - INNER_HEAD_SIZE


def inner_heads(
    body_lengths: NDArray[np.integer],
    properties_lengths: NDArray[np.integer],
    flags: NDArray[np.integer] | int = 0,
) -> NDArray[np.uint8]:
    """Return the bytes before each body: one row of INNER_HEAD_SIZE bytes per message.

    Magic number and CRC are 0: brokers check neither.
    """
    heads = np.zeros(body_lengths.size, _HEAD)
    heads["total_size"] = body_lengths + properties_lengths + INNER_FIXED_SIZE
    heads["flag"] = flags
    heads["body_length"] = body_lengths
    return heads.view(np.uint8).reshape(-1, INNER_HEAD_SIZE)


def properties_lengths_between(properties_lengths: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return the bytes between each body and its properties: LENGTH_SIZE bytes per message.

    The caller ensures that no length exceeds `properties.MAX_PROPERTIES`.
    """
    return properties_lengths.astype(">u2").view(np.uint8).reshape(-1, LENGTH_SIZE)
