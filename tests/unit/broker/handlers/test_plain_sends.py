"""Plain sends: the compiled kernel against the Python handlers, byte by byte.

Each seed makes a session: chunks of sends of every form, of other requests, and of damaged frames,
cut at any byte. Two brokers get the same chunks, one with the kernel, one without. Responses, log,
consume queues and key index must be the same.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.broker.hooks import Hooks, SendMessageContext
from pyromq.protocol import kernel
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.remoting.connection import Connection
from pyromq.store import chunk as chunk_module
from tests.support.examples import is_soak
from tests.support.requests import BORN, pull_request, raw_frame, send_request
from tests.unit.broker.assembled import AssembledBroker, Client
from tests.unit.broker.handlers.sends import ALL_FORMS, inner_batch, warm

SEEDS = range(300 if is_soak() else 12)
PEERS = (("127.0.0.1", 40404), ("2001:db8::7", 40405))
NUMBERS = ("0", "1", "7", "007", "-1", "+1", "2147483647", "2147483648", "9" * 19, "", "x", "1.5")
PROPERTIES = (
    "KEYS\x01one two",
    "UNIQ_KEY\x017F0000010000AAC20000",
    "TAGS\x01TagA",
    "TAGS\x01",
    "TAGS\x01Märchen",
    "TAGS\x01\U0001f680",
    "xTAGS\x01no",
    "WAIT\x01true",
    "WAIT\x01false",
    "xWAIT\x01true",
    "a\x01bWAIT\x01c",
    "DELAY\x013",
    "DELAY\x010",
    "CLUSTER\x01Other",
    "TRAN_MSG\x01true",
    'name\x01va\\lu"e/\n\t\r\b\f\x7f',
    "鍵\x01値",
    "\x01",
    "a\x01b\x01c",
    "",
    "name",
)


@pytest.fixture(autouse=True)
def _kernel() -> None:
    assert kernel.load("sends") is not None, "build the kernel: make test does"


@pytest.mark.parametrize("seed", SEEDS)
async def test_sessions_leave_the_same_bytes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_module, "now_ms", lambda: BORN)
    rnd = random.Random(seed)
    session = list(chunks(rnd))
    taken = 0

    async def run(root: Path, *, with_kernel: bool) -> tuple[list[tuple[bytes, bool]], list[bytes]]:
        nonlocal taken
        random.seed(seed)
        broker = AssembledBroker(root)
        service = broker.assembly.service
        assert service.take_frames is not None
        if with_kernel:
            take = service.take_frames

            def counted(
                connection: Connection, chunk: bytes, position: int, answers: list[bytes]
            ) -> int:
                nonlocal taken
                end = take(connection, chunk, position, answers)
                taken += end - position
                return end

            broker.server.serve(dataclasses.replace(service, take_frames=counted))
        server = broker.server if with_kernel else broker.hot_server
        clients = [Client(server, peer) for peer in PEERS]
        for queue_id in range(4):
            warm(broker, queue_id=queue_id)
        outcome = []
        for number, pieces in session:
            client = clients[number]
            for piece in pieces:
                if not client.closed:
                    client.connection.data_received(piece)
            outcome.append((bytes(client.transport.written), client.closed))
            client.transport.written.clear()
            if client.closed:
                client.lose()
                clients[number] = Client(server, PEERS[number])
        await broker.close()
        return outcome, files(root)

    plain = await run(tmp_path / "python", with_kernel=False)
    compiled = await run(tmp_path / "kernel", with_kernel=True)

    for number, (expected, found) in enumerate(zip(plain[0], compiled[0], strict=True)):
        assert found == expected, f"chunk {number}: {session[number]}"
    assert compiled[1] == plain[1]
    assert taken > 2000, "the kernel must serve many of them"


def chunks(rnd: random.Random) -> Iterator[tuple[int, list[bytes]]]:
    """Yield chunks for one of the connections, each in pieces."""
    for _ in range(80):
        requests = [request(rnd) for _ in range(rnd.choice((1, 1, 2, 5, 20)))]
        data = b"".join(requests)
        if rnd.random() < 0.15:
            data = damaged(rnd, data)
        cuts = sorted(rnd.randrange(len(data) + 1) for _ in range(rnd.choice((0, 0, 1, 3))))
        yield (
            rnd.randrange(len(PEERS)),
            [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b],
        )


def request(rnd: random.Random) -> bytes:
    """Return a send, plain or not, or another request."""
    if rnd.random() < 0.05:
        return pull_request(queueId=str(rnd.randrange(4)), opaque=rnd.randrange(99)).encode()
    is_odd = rnd.random() < 0.3

    def number(usual: str) -> str:
        return rnd.choice(NUMBERS) if is_odd and rnd.random() < 0.2 else usual

    code = rnd.choice(ALL_FORMS)
    names = {
        "topic": "T" if rnd.random() < 0.97 else rnd.choice(("U", "", "T T", "%RETRY%g", "é")),
        "queueId": number(str(rnd.randrange(5))),
        "sysFlag": number(rnd.choice(("0", "1", "256"))),
        "bornTimestamp": number(str(BORN)),
        "flag": number("0"),
        "reconsumeTimes": rnd.choice((None, "0", number("2"))),
        "properties": properties(rnd, is_odd=is_odd),
    }
    if is_odd and rnd.random() < 0.2:
        names[rnd.choice(("properties", "flag", "sysFlag", "queueId"))] = None
    if is_odd and rnd.random() < 0.3:
        names["batch"] = rnd.choice(("true", "false", None, "x"))
    body = rnd.randbytes(rnd.choice((0, 1, 30, 128, 300)))
    if is_odd and rnd.random() < 0.05:
        body = rnd.randbytes(33_000)
    if code == RequestCode.SEND_BATCH_MESSAGE or names.get("batch") == "true":
        body = batch(rnd)
    command = send_request(
        code,
        body,
        opaque=rnd.choice((0, 1, -1, 77, 2**31 - 1, -(2**31))),
        oneway=rnd.random() < 0.1,
        encoding=rnd.choice((Encoding.JSON, Encoding.ROCKETMQ)),
        **names,  # type: ignore[arg-type]
    )
    return encoded(rnd, command)


def properties(rnd: random.Random, *, is_odd: bool) -> str:
    choices = PROPERTIES if is_odd else PROPERTIES[:8]
    text = "\x02".join(rnd.choices(choices, k=rnd.randrange(6)))
    return text + rnd.choice(("", "", "\x02", "\x02WAIT\x01true"))


def batch(rnd: random.Random) -> bytes:
    """Return a batch, sometimes a damaged one."""
    body = b"".join(
        encode_inner_message(
            rnd.randbytes(rnd.choice((0, 5, 128))), properties(rnd, is_odd=False).encode(), number
        )
        for number in range(rnd.choice((0, 1, 3, 32, 70)))
    )
    if rnd.random() < 0.1:
        body = damaged(rnd, body or b"x")
    return body


def encoded(rnd: random.Random, command: RemotingCommand) -> bytes:
    """Return a frame, as one of many JSON writers would have written it."""
    if command.encoding != Encoding.JSON or rnd.random() < 0.4:
        return command.encode()
    header = {
        "code": int(command.code),
        "language": rnd.choice(("GO", 7, None)),
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": rnd.choice(("", None, "a \\ b", "é")),
        "extFields": {**command.ext_fields, "n": "broker"},
    }
    if rnd.random() < 0.3:
        del header[rnd.choice(("flag", "remark", "opaque", "language", "version"))]
    text = json.dumps(
        dict(rnd.sample(list(header.items()), len(header))),
        ensure_ascii=rnd.random() < 0.5,
        indent=rnd.choice((None, None, 1)),
        separators=rnd.choice(((",", ":"), (", ", ": "))),
    )
    if rnd.random() < 0.1:
        text = text.replace(
            '"flag"', rnd.choice(('"fl\\u0061g"', '"code":310,"flag"', '"flag":1.0,"x"'))
        )
    return raw_frame(text.encode(), command.body)


def damaged(rnd: random.Random, data: bytes) -> bytes:
    """Return the bytes with a few changes."""
    copy = bytearray(data)
    for _ in range(rnd.choice((1, 1, 2, 4))):
        place = rnd.randrange(len(copy))
        match rnd.randrange(4):
            case 0:
                copy[place] = rnd.randrange(256)
            case 1:
                del copy[place : place + rnd.randrange(1, 5)]
            case 2:
                copy[place:place] = rnd.choice(
                    (b'"', b"\\", b"\x80", b"\xff\xff", b"{", b"\\ud800")
                )
            case 3:
                copy[place : place + 4] = rnd.choice((b"\xff" * 4, b"\x7f" + b"\xff" * 3, bytes(4)))
        if not copy:
            return b"\0"
    return bytes(copy)


def files(root: Path) -> list[bytes]:
    """Return log, consume queues and key index; an index file is named by the time."""
    return [
        path.read_bytes()
        for kind in ("commitlog", "consumequeue", "index")
        for path in sorted((root / kind).rglob("*"))
        if path.is_file()
    ]


async def test_hooks_see_every_send(tmp_path: Path) -> None:
    class Hook:
        seen = 0

        def before_send(self, context: SendMessageContext) -> None:
            Hook.seen += 1

        def after_send(self, context: SendMessageContext) -> None:
            pass

    broker = AssembledBroker(tmp_path, hooks=Hooks(send=[Hook()]))
    for _ in range(3):
        assert broker.fast.ask(send_request()).code == ResponseCode.SUCCESS
    assert Hook.seen == 3
    await broker.close()


async def test_a_changed_topic_is_checked_again(broker: AssembledBroker) -> None:
    warm(broker)
    topic = broker.topics.get("T")
    assert topic is not None

    broker.topics.update(dataclasses.replace(topic, write_queue_nums=1, read_queue_nums=1))

    assert broker.fast.ask(send_request()).code == ResponseCode.SYSTEM_ERROR


async def test_sends_between_other_requests(broker: AssembledBroker) -> None:
    warm(broker)
    odd = RemotingCommand(9999)
    requests = [odd if number % 3 == 1 else send_request(opaque=number) for number in range(30)]

    answers = broker.fast.exchange(*requests)

    expected = [
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED if number % 3 == 1 else ResponseCode.SUCCESS
        for number in range(30)
    ]
    assert [answer.code for answer in answers] == expected
    assert [record.queue_offset for record in broker.records()] == list(range(21))


async def test_many_queues(broker: AssembledBroker) -> None:
    topics = [f"Topic{number}" for number in range(50)]
    requests = [
        send_request(topic=topic, queueId=str(queue), body=topic.encode())
        for topic in topics
        for queue in range(4)
    ]
    assert all(answer.code == ResponseCode.SUCCESS for answer in broker.fast.exchange(*requests))

    answers = broker.fast.exchange(*requests, *requests)

    assert {answer.ext_fields["queueOffset"] for answer in answers} == {"1", "2"}
    assert [(r.topic, r.queue_id) for r in broker.records()[200:]] == [
        (topic, queue) for _ in range(2) for topic in topics for queue in range(4)
    ]


async def test_a_chunk_larger_than_the_scratch_buffers(broker: AssembledBroker) -> None:
    code = RequestCode.SEND_BATCH_MESSAGE
    warm(broker)
    # Tiny messages: their records are many times as large, and so are the responses.
    requests = [send_request(code, inner_batch(4000), queueId="1") for _ in range(15)]

    answers = broker.fast.exchange(*requests)

    assert [answer.ext_fields["queueOffset"] for answer in answers] == [
        str(1 + 4000 * number) for number in range(15)
    ]
    assert broker.store.max_offset("T", 1) == 60_001
