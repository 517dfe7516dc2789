from __future__ import annotations

import hashlib
from typing import Any

import pytest

from pyromq.acl import compiled
from pyromq.acl.addresses import parse_expression
from pyromq.acl.rules import Account, Rules
from pyromq.protocol import kernel
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode
from tests.support.requests import pull_request

ALICE = Account("alice_key", "alice_secret")
PULL = {"topic": "T", "consumerGroup": "consumers"}


@pytest.fixture
def signatures() -> compiled.CompiledSignatures:
    loaded = compiled.load(0)
    if loaded is None:
        pytest.skip("no compiled kernel, or no OpenSSL library")
    return loaded


def accepts(signatures: compiled.CompiledSignatures, account: Account = ALICE) -> bool:
    request = pull_request()
    acl.sign(request.ext_fields, request.body, account.access_key, account.secret_key)
    frame = request.encode()
    return bool(signatures.signatures.run(frame, 0) == len(frame))


def test_an_allowed_request_is_accepted_until_the_rules_change(
    signatures: compiled.CompiledSignatures,
) -> None:
    rules = Rules({"alice_key": ALICE})
    signatures.set_rules(rules)
    assert not accepts(signatures)
    signatures.allow(RequestCode.PULL_MESSAGE, ALICE, PULL)
    assert accepts(signatures)
    signatures.set_rules(rules)
    assert not accepts(signatures)


def test_accounts_with_a_white_list_are_for_python(
    signatures: compiled.CompiledSignatures,
) -> None:
    white = Account("alice_key", "alice_secret", white=parse_expression("10.0.0.1"))
    signatures.set_rules(Rules({"alice_key": white}))
    signatures.allow(RequestCode.PULL_MESSAGE, white, PULL)
    assert not accepts(signatures)


def test_retry_topics_are_for_python(signatures: compiled.CompiledSignatures) -> None:
    signatures.set_rules(Rules({"alice_key": ALICE}))
    fields = {**PULL, "topic": "%RETRY%g"}
    signatures.allow(RequestCode.PULL_MESSAGE, ALICE, fields)
    request = pull_request(topic="%RETRY%g")
    acl.sign(request.ext_fields, request.body, "alice_key", "alice_secret")
    assert signatures.signatures.run(request.encode(), 0) == 0


def test_requests_without_a_topic_are_not_noted(signatures: compiled.CompiledSignatures) -> None:
    signatures.allow(RequestCode.PULL_MESSAGE, ALICE, {})
    signatures.allow(RequestCode.SEND_MESSAGE_V2, ALICE, {})


def test_without_the_kernel_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_LIBRARIES", ("libmissing.so.1",))
    assert compiled.load(0) is None
    monkeypatch.undo()
    monkeypatch.setenv(kernel.PURE_VARIABLE, "1")
    assert compiled.load(0) is None


def test_a_wrong_hash_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if compiled.load(0) is None:
        pytest.skip("no compiled kernel, or no OpenSSL library")

    def wrong(secret_key: str) -> tuple[bytes, bytes]:
        block = hashlib.sha512(secret_key.encode()).digest()
        return block, block

    monkeypatch.setattr(compiled, "padded_keys", wrong)
    assert compiled.load(0) is None
    assert "Python checks them" in caplog.text


def test_the_codes_of_the_kernel() -> None:
    table: dict[int, Any] = compiled._RESOURCES
    assert sorted(table) == [10, 11, 310, 320, 361]
