from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import pytest

from pyromq.admin.messages.messages import FoundMessages
from pyromq.cli.admin.message_text import (
    body_text,
    found_json,
    message_json,
    message_line,
    properties_text,
    queue_text,
    save_body,
    tracked_json,
)
from pyromq.protocol.wire.bodies import MessageQueue
from tests.unit.admin.stored_messages import made_up


def test_json_keeps_every_byte() -> None:
    text = message_json(made_up(body="schön".encode()))
    assert text["body"] == "schön"
    assert "raw_body" not in text
    binary = message_json(made_up(body=b"\xff\x00"))
    assert "body" not in binary
    assert base64.b64decode(binary["body_base64"]) == b"\xff\x00"
    found = found_json(FoundMessages((made_up(),), complete=False, reason="more"))
    assert (len(found["messages"]), found["complete"], found["reason"]) == (1, False, "more")
    assert tracked_json(made_up(), [])["tracks"] == []


def test_lines_of_a_message() -> None:
    message = made_up(properties={"a": "1", "b": "2"}, body="ä".encode("gbk", "replace"))
    assert properties_text(message) == "{a=1, b=2}"
    line = message_line(made_up(body=b"hello", properties={"a": "1"}), "utf-8", body=True)
    assert line.startswith("MSGID: ID MessageExt [brokerName=broker-0, queueId=0, ")
    assert line.endswith("properties={a=1}] BODY: hello")
    assert message_line(made_up(), "utf-8", body=False).endswith("BODY: NOT PRINT BODY")
    assert body_text(made_up(problem="zlib: bad"), "utf-8") == "CANNOT BE DECOMPRESSED: zlib: bad"
    assert (
        queue_text(MessageQueue("t", "b", 1)) == "MessageQueue [topic=t, brokerName=b, queueId=1]"
    )


def test_bodies_are_saved_where_mqadmin_saves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = save_body(made_up(body=b"content"))
    assert path == tmp_path / "rocketmq" / "msgbodys" / "ID"
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o600
    victim = tmp_path / "victim"
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        save_body(made_up(body=b"content"))
    assert not victim.exists()
