"""Hashes, checksums, ids, properties and names equal Java's results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyromq.protocol.filter.tags import TagFilter, parse_tags
from pyromq.protocol.java.string_hash import (
    continue_hash,
    index_key_hash,
    java_hash,
    java_hash_bytes,
)
from pyromq.protocol.java.string_hashes import java_hashes
from pyromq.protocol.message.message_id import decode_message_id, encode_host, encode_message_id
from pyromq.protocol.message.properties import decode_properties, encode_properties
from pyromq.protocol.message.record import body_crc
from pyromq.store.log.mapped_file import file_name
from tests.golden.golden_data import Entry, read_index
from tests.support.each import for_each

VALUES: dict[str, list[Entry]] = read_index("values")


def rows(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return for_each("row", VALUES[name], ascii)


@rows("hashes")
def test_hash_code(row: Entry) -> None:
    assert java_hash(row["text"]) == row["hash"]
    assert java_hash_bytes(row["text"].encode()) == row["hash"]


def test_many_hash_codes_at_once() -> None:
    texts = [row["text"].encode() for row in VALUES["hashes"]]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    hashes, _ = java_hashes(data, starts, lengths)
    assert hashes.view(np.int32).tolist() == [row["hash"] for row in VALUES["hashes"]]


@rows("indexKeyHashes")
def test_index_key_hash(row: Entry) -> None:
    if row["key"] is None:  # a complete string, chosen for its hash code
        assert index_key_hash(java_hash(row["topic"])) == row["hash"]
    else:
        begun = java_hash(row["topic"] + "#")
        assert index_key_hash(continue_hash(begun, row["key"].encode())) == row["hash"]


@rows("tagsCodes")
def test_tags_code(row: Entry) -> None:
    assert java_hash(row["tags"]) == row["code"]


@rows("tagExpressions")
def test_tag_expression(row: Entry) -> None:
    assert sorted(parse_tags(row["expression"])) == row["tags"]
    tag_filter = TagFilter.of(row["expression"])
    assert sorted(tag_filter.codes if tag_filter else []) == row["codes"]


@rows("crc32")
def test_body_crc(row: Entry) -> None:
    assert body_crc(row["text"].encode()) == row["crc"]


@rows("messageIds")
def test_message_id(row: Entry) -> None:
    host = encode_host(row["host"], row["port"])
    assert encode_message_id(host, row["offset"]) == row["id"]
    assert decode_message_id(row["id"]) == (row["host"], row["port"], row["offset"])


@rows("properties")
def test_properties(row: Entry) -> None:
    assert encode_properties(row["pairs"]) == row["text"].encode()
    assert decode_properties(row["text"]) == row["read"]
    assert decode_properties(row["text"].encode()) == row["read"]


@rows("fileNames")
def test_file_name(row: Entry) -> None:
    assert file_name(row["offset"]) == row["name"]
