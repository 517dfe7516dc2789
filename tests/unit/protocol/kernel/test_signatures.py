"""Frames that the kernel accepts, in the build with bounds checks: those that Python would."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pyromq.acl import compiled
from pyromq.acl.rules import Account, Rules
from pyromq.acl.signature import is_signed_by
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import (
    Encoding,
    RemotingCommand,
    command_from,
    split_frames,
)
from tests import kernel_builds
from tests.support.damage import damaged
from tests.support.requests import pull_request, raw_frame, send_request
from tests.unit.protocol.kernel.kernel_sends import HOST, NOW, Broker

ALICE = Account("alice_key", "alice_secret")
CAROL = Account("carol_key", "k" * 100)
BOTH = list(Encoding)
SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)


@pytest.fixture
def guard() -> Any:
    return make_guard()


def make_guard(max_age: int = 0) -> Any:
    functions = compiled._hash_functions()
    if functions is None:
        pytest.skip("no OpenSSL library")
    module = kernel_builds.load(kernel_builds.CHECKED, "signatures")
    made = compiled.CompiledSignatures(module, functions, max_age)
    made.set_rules(Rules({each.access_key: each for each in (ALICE, CAROL)}))
    for account in (ALICE, CAROL):
        for code in SENDS:
            made.allow(code, account, {"topic": "T", "b": "T"})
        made.allow(RequestCode.PULL_MESSAGE, account, {"topic": "T", "consumerGroup": "consumers"})
    return made.signatures


def signed(request: RemotingCommand, account: Account = ALICE) -> RemotingCommand:
    acl.sign(request.ext_fields, request.body, account.access_key, account.secret_key)
    return request


def is_served(guard: Any, *requests: RemotingCommand | bytes) -> list[bool]:
    """Return which sends a broker serves; each is asked for alone."""
    broker = Broker()
    broker.add()
    found = []
    for request in requests:
        frame = request if isinstance(request, bytes) else request.encode()
        end = broker.sends.run(frame, 0, 0, 1 << 40, NOW, HOST, guard=guard)[0]
        found.append(end == len(frame))
        broker.sends.reset()
    assert kernel_builds.fault_count(kernel_builds.CHECKED) == 0
    return found


@pytest.mark.parametrize("encoding", BOTH)
@pytest.mark.parametrize("code", SENDS)
def test_signed_sends_are_served(guard: Any, code: RequestCode, encoding: Encoding) -> None:
    bodies = [bytes(size) for size in (0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 5000)]
    requests = [send_request(code, body, encoding=encoding) for body in bodies]
    assert not any(is_served(guard, *requests))
    assert all(is_served(guard, *(signed(request) for request in requests)))
    requests = [send_request(code, body, encoding=encoding) for body in bodies]
    assert all(is_served(guard, *(signed(request, CAROL) for request in requests)))


@pytest.mark.parametrize("encoding", BOTH)
def test_properties_are_signed_without_their_escapes(guard: Any, encoding: Encoding) -> None:
    properties = 'KEYS\x01a"b\\c\x02TAGS\x01ä😀\n'
    request = signed(send_request(properties=properties, encoding=encoding))
    assert is_served(guard, request) == [True]


@pytest.mark.parametrize("encoding", BOTH)
def test_every_value_counts(guard: Any, encoding: Encoding) -> None:
    good = signed(send_request(encoding=encoding))
    assert is_served(guard, good) == [True]
    for name, value in good.ext_fields.items():
        changed = signed(send_request(encoding=encoding))
        changed.ext_fields[name] = value + "1"
        assert is_served(guard, changed) == [False], name
    assert is_served(guard, signed(send_request(encoding=encoding))) == [True]
    longer = signed(send_request(encoding=encoding))
    longer.body += b"x"
    assert is_served(guard, longer) == [False]


def test_more_and_other_fields(guard: Any) -> None:
    """Other clients have other fields, in another order."""
    for more in ({"ReqT": "0"}, {"OnsChannel": "ALIYUN", "zz": ""}, {"": "x", "A": "y"}):
        request = send_request()
        request.ext_fields = {**more, **dict(reversed(request.ext_fields.items()))}
        assert is_served(guard, signed(request)) == [True], more


def test_a_field_that_occurs_twice_is_for_python(guard: Any) -> None:
    frame = signed(send_request()).encode()
    header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]

    def with_fields(text: bytes) -> bytes:
        return raw_frame(header.replace(b'"extFields":{', b'"extFields":{' + text, 1), b"body")

    # Fields without a value change nothing that is signed.
    assert is_served(guard, with_fields(b'"zz":"",')) == [True]
    assert is_served(guard, with_fields(b'"zz":"","zz":"",')) == [False]


@pytest.mark.parametrize("encoding", BOTH)
def test_only_what_was_allowed(guard: Any, encoding: Encoding) -> None:
    assert is_served(guard, signed(send_request(encoding=encoding))) == [True]
    eve = Account("eve_key", "eve_secret")
    assert is_served(guard, signed(send_request(encoding=encoding), eve)) == [False]
    forged = Account("alice_key", "other_secret")
    assert is_served(guard, signed(send_request(encoding=encoding), forged)) == [False]
    guard.clear()
    assert is_served(guard, signed(send_request(encoding=encoding))) == [False]


@pytest.mark.parametrize(("age", "is_good"), [(0, True), (1000, True), (1001, False)])
def test_the_age_of_a_send(age: int, is_good: bool) -> None:
    for born in (NOW - age, NOW + age):
        request = signed(send_request(bornTimestamp=str(born)))
        assert is_served(make_guard(1000), request) == [is_good]


@pytest.mark.parametrize("encoding", BOTH)
def test_pulls(guard: Any, encoding: Encoding) -> None:
    pulls = [signed(pull_request(encoding=encoding, opaque=number)).encode() for number in range(3)]
    chunk = b"".join(pulls)
    assert (guard.run(chunk, 0), guard.is_whole) == (len(chunk), True)
    assert guard.run(chunk, len(pulls[0])) == len(chunk)
    # The beginning of another frame changes nothing; another frame does.
    assert (guard.run(chunk + pulls[0][:-1], 0), guard.is_whole) == (len(chunk), True)
    for other in (
        pull_request(encoding=encoding).encode(),
        signed(pull_request(encoding=encoding, topic="X")).encode(),
        signed(pull_request(encoding=encoding, consumerGroup="x")).encode(),
        signed(pull_request(encoding=encoding, consumerGroup=None)).encode(),
        signed(send_request(encoding=encoding)).encode(),
        b"\xff" * 100,
    ):
        assert (guard.run(chunk + other, 0), guard.is_whole) == (len(chunk), False)
    assert kernel_builds.fault_count(kernel_builds.CHECKED) == 0


def test_pulls_per_call_are_limited(guard: Any) -> None:
    pull = signed(pull_request()).encode()
    assert (guard.run(pull * 40, 0), guard.is_whole) == (len(pull) * 32, False)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_frames_are_never_accepted_wrongly(guard: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        encoding = chance.choice(BOTH)
        is_pull = chance.random() < 0.5
        request = pull_request(encoding=encoding) if is_pull else send_request(encoding=encoding)
        frame = damaged(chance, signed(request).encode())
        if is_pull:
            is_accepted = guard.run(frame, 0) == len(frame) > 0
        else:
            (is_accepted,) = is_served(guard, frame)
        if is_accepted:
            frames, _, error = split_frames(frame)
            assert error is None
            for command in map(command_from, frames):
                assert is_signed_by(ALICE, command.ext_fields, command.body), frame
