"""Java's hashes: golden values of `String.hashCode`, and that all ways to them agree."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.java import string_hash
from pyromq.protocol.java.string_hash import (
    continue_hash,
    index_key_hash,
    java_hash,
    java_hash_bytes,
)

#: What Java 17 prints for "...".hashCode().
HASH_CODES = [
    ("", 0),
    ("a", 97),
    ("TagA", 2598919),
    ("polygenelubricants", -2147483648),
    ("Schlüssel", -2110983409),
    ("键和标签", 1159375349),
    ("\N{ROCKET}", 1773027),
    ("TopicTest#7F0000010A1C18B4AAC2000000000001", 1748278462),
    ("x" * 100, 1680682496),
]

#: What Java 17 prints for new String(bytes, UTF_8).hashCode() of bytes that are no UTF-8.
MALFORMED = [
    ("ff", 65533),
    ("61ff62", 2124838),
    ("eda080", 65533),
    ("eda0", 65533),
    ("ed", 65533),
    ("f09f98", 65533),
    ("f4908080", 2017367872),
    ("c080", 2097056),
    ("e080af", 65074269),
]

#: Valid and damaged text, as in properties.
utf8_like = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=4),
        st.text(min_size=1, max_size=8).map(lambda text: text.encode(errors="surrogatepass")),
        st.text(st.characters(codec="ascii"), min_size=1, max_size=60).map(str.encode),
    ),
    max_size=4,
).map(b"".join)


def test_numpy_computes_the_same_hash() -> None:
    assert string_hash._hash_with_numpy(b"TagA") == 2598919
    assert string_hash._hash_with_numpy(memoryview(b"T\0a\0g\0A\0").cast("H")) == 2598919


@pytest.mark.parametrize(("text", "expected"), HASH_CODES)
def test_hash_code_equals_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert java_hash_bytes(text.encode()) == expected


@pytest.mark.parametrize(("utf8", "expected"), MALFORMED)
def test_malformed_utf8_hashes_as_java_reads_it(utf8: str, expected: int) -> None:
    assert java_hash_bytes(bytes.fromhex(utf8)) == expected


@pytest.mark.parametrize(
    ("hash_code", "expected"),
    [(0, 0), (5, 5), (-5, 5), (2147483647, 2147483647), (-2147483647, 2147483647), (-(1 << 31), 0)],
)
def test_index_key_hash_is_never_negative(hash_code: int, expected: int) -> None:
    assert index_key_hash(hash_code) == expected


@given(st.text(st.characters(), max_size=200))
def test_hash_is_the_plain_sum_over_code_units(text: str) -> None:
    assert java_hash(text) == plain_hash(text)


def test_long_texts() -> None:
    text = "0123456789é" * 7_000
    assert java_hash(text) == plain_hash(text)
    assert java_hash("long" * 30_000) == plain_hash("long" * 30_000)
    for length in (64, 65, 511, 512, 513, 1000):
        assert java_hash("é" * length) == plain_hash("é" * length)


@given(st.lists(utf8_like, max_size=12), utf8_like)
def test_a_hash_goes_on_where_another_ended(spans: list[bytes], beginning: bytes) -> None:
    beginning += b"#"
    initial = java_hash_bytes(beginning)
    expected = [java_hash_bytes(beginning + span) for span in spans]
    assert [continue_hash(initial, span) for span in spans] == expected


def test_clients_start_without_numpy() -> None:
    program = "import sys, pyromq.client; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def plain_hash(text: str) -> int:
    value = 0
    encoded = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = (value * 31 + int.from_bytes(encoded[at : at + 2], "little")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
