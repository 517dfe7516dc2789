"""Hashes of many spans at once equal those of each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyromq.protocol.java.string_hash import decode_utf8, java_hash_bytes
from pyromq.protocol.java.string_hashes import (
    MAX_WINDOW,
    continue_hashes,
    index_key_hashes,
    java_hashes,
)

#: Valid and damaged text, as in properties.
utf8_like = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=4),
        st.text(min_size=1, max_size=8).map(lambda text: text.encode(errors="surrogatepass")),
        st.text(st.characters(codec="ascii"), min_size=1, max_size=60).map(str.encode),
    ),
    max_size=4,
).map(b"".join)


def test_index_key_hashes_are_never_negative() -> None:
    hashes = [0, 5, -5, 2147483647, -2147483647, -(1 << 31)]
    expected = [0, 5, 5, 2147483647, 2147483647, 0]
    assert index_key_hashes(np.array(hashes, np.int32)).tolist() == expected


@given(st.lists(utf8_like, max_size=12), st.binary(max_size=MAX_WINDOW + 8))
def test_many_at_once_equal_one_by_one(spans: list[bytes], before: bytes) -> None:
    data, starts, lengths = laid_out(spans, before)
    hashes, units = java_hashes(data, starts, lengths)
    assert hashes.view(np.int32).tolist() == [java_hash_bytes(span) for span in spans]
    assert units.tolist() == [len(decode_utf8(span).encode("utf-16-le")) // 2 for span in spans]


@given(st.lists(utf8_like, max_size=12), utf8_like)
def test_extended_hashes(spans: list[bytes], beginning: bytes) -> None:
    beginning += b"#"
    initial = java_hash_bytes(beginning)
    expected = [java_hash_bytes(beginning + span) for span in spans]
    initials = np.full(len(spans), initial, np.int32).view(np.uint32)
    hashes, units = java_hashes(*laid_out(spans, bytes(MAX_WINDOW)))
    assert continue_hashes(initials, hashes, units).tolist() == expected


@pytest.mark.parametrize("length", [MAX_WINDOW - 1, MAX_WINDOW, MAX_WINDOW + 1, 32_767])
def test_lengths_around_the_window(length: int) -> None:
    spans = [b"k" * length, b"short", b""]
    hashes, _ = java_hashes(*laid_out(spans, b""))
    assert hashes.view(np.int32).tolist() == [java_hash_bytes(span) for span in spans]


def laid_out(
    spans: list[bytes], before: bytes
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    lengths = np.array([len(span) for span in spans], np.int64)
    starts = len(before) + np.cumsum(lengths) - lengths
    return np.frombuffer(before + b"".join(spans), np.uint8), starts, lengths
