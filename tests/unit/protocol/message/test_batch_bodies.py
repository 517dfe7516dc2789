from __future__ import annotations

import numpy as np

from pyromq.protocol.message.batch_bodies import inner_heads, properties_lengths_between
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.record import encode_inner_message, inner_count


def test_many_inner_messages_equal_single_ones() -> None:
    bodies = [b"", b"a", b"body" * 1000, b"\xff" * 70_000]
    properties = [b"", b"a\x01b", b"x" * 300, b"y" * MAX_PROPERTIES]
    body_lengths = np.array([len(body) for body in bodies])
    lengths = np.array([len(text) for text in properties])
    flags = np.array([0, 1, -1, 2**31 - 1])
    heads = inner_heads(body_lengths, lengths, flags)
    between = properties_lengths_between(lengths)
    joined = [
        heads[row].tobytes() + bodies[row] + between[row].tobytes() + properties[row]
        for row in range(len(bodies))
    ]
    assert joined == [
        encode_inner_message(*parts)
        for parts in zip(bodies, properties, flags.tolist(), strict=True)
    ]
    assert inner_count(b"".join(joined)) == len(bodies)


def test_no_messages() -> None:
    nothing = np.zeros(0, np.int32)
    assert inner_heads(nothing, nothing).shape == (0, 20)
    assert properties_lengths_between(nothing).shape == (0, 2)
