from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import time
from enum import Enum, IntEnum

import pytest

from pyromq.client.errors import IllegalMessageError
from pyromq.client.message import (
    MAX_BODY,
    Message,
    UniqueKeys,
    check_group,
    check_topic,
    local_address,
)
from pyromq.protocol.message.properties import decode_properties


def test_properties_carry_tags_keys_and_unique_key() -> None:
    message = Message("t", b"x", tags="a", keys=["k1", "k2"], properties={"mine": "1"})
    assert decode_properties(message.wire_properties("KEY")) == {
        "mine": "1",
        "KEYS": "k1 k2",
        "TAGS": "a",
        "UNIQ_KEY": "KEY",
        "WAIT": "true",
    }
    assert message.properties == {"mine": "1"}


def test_an_application_may_set_wait() -> None:
    properties = Message("t", b"x", properties={"WAIT": "false"}).wire_properties("KEY")
    assert decode_properties(properties) == {"WAIT": "false", "UNIQ_KEY": "KEY"}


class Word(str, Enum):  # noqa: UP042 - as many programs have it
    TAG = "tag"
    KEY = "key"
    VALUE = "value"


class Level(IntEnum):
    TEN_SECONDS = 3


def test_members_of_enums_count_as_their_values() -> None:
    message = Message(
        "t",
        b"x",
        tags=Word.TAG,
        keys=Word.KEY,
        properties={Word.KEY: Word.VALUE},
        delay_level=Level.TEN_SECONDS,
        ordering_key=Word.KEY,
    )
    message.check()
    assert decode_properties(message.wire_properties("ID")) == {
        "key": "value",
        "KEYS": "key",
        "TAGS": "tag",
        "DELAY": "3",
        "__SHARDINGKEY": "key",
        "UNIQ_KEY": "ID",
        "WAIT": "true",
    }


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"": "b"}])
def test_properties_that_would_change_others_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(IllegalMessageError, match="cannot be sent"):
        Message("t", b"x", properties=properties).wire_properties("KEY")


def test_too_many_properties_are_refused() -> None:
    with pytest.raises(IllegalMessageError, match="the limit is 32767"):
        Message("t", b"x", properties={"a": "b" * 32_768}).wire_properties("KEY")


def test_messages_that_a_broker_would_refuse_are_refused_here() -> None:
    Message("t", bytes(MAX_BODY)).check()
    for bad in (Message("t", b""), Message("t", bytes(MAX_BODY + 1)), Message("no topic", b"x")):
        with pytest.raises(IllegalMessageError):
            bad.check()


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ü", "a\n", "x" * 128])
def test_illegal_topic_names(name: str) -> None:
    with pytest.raises(IllegalMessageError):
        check_topic(name)


def test_legal_names() -> None:
    check_topic("%RETRY%group_1-a|b")
    check_topic("x" * 127)
    check_group("x" * 255)
    with pytest.raises(IllegalMessageError):
        check_group("x" * 256)


def test_unique_keys_have_the_layout_of_java() -> None:
    before = time.time()
    key = UniqueKeys()()
    assert re.fullmatch("[0-9A-F]{32}", key)
    ip, pid, _, elapsed, counter = struct.unpack(">4sHIIH", bytes.fromhex(key))
    assert socket.inet_ntoa(ip) == local_address()
    assert (pid, counter) == (os.getpid() & 0xFFFF, 0)
    today = time.localtime(before)
    month = time.mktime((today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    assert month + elapsed / 1000 == pytest.approx(before, abs=60)


def test_unique_keys_differ() -> None:
    create = UniqueKeys()
    assert len({create() for _ in range(10_000)}) == 10_000


def test_a_forked_child_creates_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    create = UniqueKeys()
    first = create()
    monkeypatch.setattr(os, "getpid", lambda: 0x12345)
    create.forget()
    assert create()[8:12] == "2345"
    assert first[8:12] != "2345"


def test_a_fork_is_noticed() -> None:
    program = """
import os
from pyromq.client.message import create_unique_key
parent = create_unique_key()
if child := os.fork():
    os.waitpid(child, 0)
    print(parent[8:20], create_unique_key()[8:20], flush=True)
else:
    print(create_unique_key()[8:20], flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    child, before, after = done.stdout.decode().split()
    assert before == after
    assert child[:4] != before[:4]
    assert child[4:] != before[4:]  # the random bytes differ as well


def test_the_time_in_a_key_restarts_each_month(monkeypatch: pytest.MonkeyPatch) -> None:
    create = UniqueKeys()
    end_of_year = time.mktime((2026, 12, 31, 23, 59, 59, 0, 0, -1))
    monkeypatch.setattr(time, "time_ns", lambda: int(end_of_year * 1e9))
    assert int(create()[20:28], 16) == (31 * 86400 - 1) * 1000
    monkeypatch.setattr(time, "time_ns", lambda: int((end_of_year + 3) * 1e9))
    assert int(create()[20:28], 16) == 2000
