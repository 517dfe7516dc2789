from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import orjson
import pytest
from click.testing import CliRunner, Result

from pyromq.cli.broker import broker
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.promotion import PromotionCheck, PromotionReport
from pyromq.remoting.connection import Connection
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service


class FakeBroker:
    """Answers PROMOTE_BROKER, on a loop of its own."""

    def __init__(self) -> None:
        self.fields: list[dict[str, str]] = []
        self.code = ResponseCode.SUCCESS
        self.remark: str | None = None
        self.body = report(promoted=True)
        self.server = RemotingServer(host="127.0.0.1")
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def run(self) -> None:
        self.thread.start()
        service: Service[Connection] = Service(handlers={RequestCode.PROMOTE_BROKER: self.answer})
        starting = self.server.start(service)
        asyncio.run_coroutine_threadsafe(starting, self.loop).result()

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def answer(self, _: object, request: RemotingCommand) -> RemotingCommand:
        self.fields.append(request.ext_fields)
        return request.answer(self.code, self.remark, body=self.body)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


def report(*, promoted: bool, role: bool = True, master: bool = True) -> bytes:
    checks = [
        PromotionCheck("role", role, "the broker is replica 2"),
        PromotionCheck("master", master, "10.0.0.1:10911 answers as ASYNC_MASTER"),
    ]
    name = "ASYNC_MASTER" if promoted else "SLAVE"
    return PromotionReport("broker-a", promoted, name, 2, 4096, checks).encode()


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    fake = FakeBroker()
    fake.run()
    yield fake
    fake.end()


def promote(*arguments: str) -> Result:
    return CliRunner().invoke(broker, ["promote", *arguments])


def test_checks_and_next_steps_are_printed(fake: FakeBroker) -> None:
    result = promote(fake.address)
    assert result.exit_code == 0
    assert fake.fields == [{"role": "ASYNC_MASTER", "force": "false"}]
    assert result.output.startswith(
        "ok       the broker is replica 2\n"
        "ok       10.0.0.1:10911 answers as ASYNC_MASTER\n"
        f"promoted: {fake.address} is ASYNC_MASTER of broker broker-a; its log ends at 4096\n"
    )
    assert "set brokerRole=SLAVE and brokerId=2" in result.output
    assert "pyromq store truncate" in result.output


def test_a_refusal_says_what_to_do(fake: FakeBroker) -> None:
    fake.code, fake.body = ResponseCode.SYSTEM_ERROR, report(promoted=False, master=False)
    result = promote(fake.address, "--role", "sync_master")
    assert result.exit_code == 1
    assert fake.fields == [{"role": "SYNC_MASTER", "force": "false"}]
    assert "ok       the broker is replica 2\n" in result.output
    assert "refused  10.0.0.1:10911 answers as ASYNC_MASTER\n" in result.output
    assert f"not promoted: {fake.address} is SLAVE of broker broker-a\n" in result.output
    assert "--force" in result.output


def test_a_master_is_not_forced(fake: FakeBroker) -> None:
    fake.code, fake.body = ResponseCode.SYSTEM_ERROR, report(promoted=False, role=False)
    result = promote(fake.address)
    assert result.exit_code == 1
    assert "--force" not in result.output


def test_a_forced_promotion_shows_what_it_ignored(fake: FakeBroker) -> None:
    fake.body = report(promoted=True, master=False)
    result = promote(fake.address, "--force")
    assert result.exit_code == 0
    assert fake.fields[0]["force"] == "true"
    assert "ignored  10.0.0.1:10911 answers as ASYNC_MASTER\n" in result.output


@pytest.mark.parametrize("promoted", [True, False])
def test_json_is_the_report(fake: FakeBroker, promoted: bool) -> None:
    fake.body = report(promoted=promoted)
    fake.code = ResponseCode.SUCCESS if promoted else ResponseCode.SYSTEM_ERROR
    result = promote(fake.address, "--json")
    assert result.exit_code == (0 if promoted else 1)
    assert orjson.loads(result.output) == orjson.loads(fake.body)


@pytest.mark.parametrize(
    ("code", "remark", "body", "text"),
    [
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what?", b"", "it is not a broker of pyromq"),
        (ResponseCode.SYSTEM_ERROR, "not promoted: disk full", b"", "not promoted: disk full"),
        (ResponseCode.SYSTEM_ERROR, None, b"", "response code 1"),
        (ResponseCode.SUCCESS, None, b"{}", "answered nonsense"),
    ],
)
def test_failures_are_one_line(
    fake: FakeBroker, code: ResponseCode, remark: str | None, body: bytes, text: str
) -> None:
    fake.code, fake.remark, fake.body = code, remark, body
    result = promote(fake.address)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: ")
    assert text in line


def test_a_broker_that_is_not_there(fake: FakeBroker) -> None:
    result = promote("127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output.startswith("Error: no answer from 127.0.0.1:1: cannot connect")


@pytest.mark.parametrize("arguments", [(), ("nowhere",), ("127.0.0.1:1", "--role", "SLAVE")])
def test_a_wrong_command_line(arguments: tuple[str, ...]) -> None:
    assert promote(*arguments).exit_code == 2


def test_it_is_listed(fake: FakeBroker) -> None:
    result = CliRunner().invoke(broker, ["--help"])
    assert "promote   Turn a replica into a master." in result.output
    assert "No such command 'demote'" in CliRunner().invoke(broker, ["demote"]).output
