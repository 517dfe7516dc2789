"""The texts are those of real nodes: DLedger 0.3.1.2 sent or accepted them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.raft.format import Run
from pyromq.raft.messages import (
    NONE,
    Code,
    Entry,
    HeartbeatRequest,
    HeartbeatResponse,
    PushRequest,
    PushResponse,
    PushType,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyromq.raft.network.json_bodies import (
    MAX_ENTRIES,
    MAX_TERM,
    BodyError,
    RaftCode,
    code_of,
    decode_fields,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    entry_fields,
)

BASE: dict[str, Any] = {
    "group": "g",
    "local_id": "n1",
    "remote_id": "n0",
    "leader_id": "n1",
    "term": 3,
}
ENTRY = Entry(7, 3, 400, 53, b"hello")

REQUESTS: list[Request] = [
    VoteRequest(ledger_end_index=7, ledger_end_term=2, **BASE),
    VoteRequest(ledger_end_index=NONE, ledger_end_term=NONE, **{**BASE, "leader_id": None}),
    HeartbeatRequest(**BASE),
    PushRequest(type=PushType.COMMIT, commit_index=5, **BASE),
    PushRequest(type=PushType.COMPARE, commit_index=NONE, entries=(ENTRY,), **BASE),
    PushRequest(
        type=PushType.APPEND, commit_index=6, entries=(ENTRY, Entry(8, 3, 453, 49, b"x")), **BASE
    ),
    TransferRequest(transfer_id="n1", transferee_id="n0", take_leadership_ledger_index=7, **BASE),
]

RESPONSES: list[tuple[int, Response, Request]] = [
    (
        RaftCode.VOTE,
        VoteResponse(term=4, vote_result=VoteResult.ACCEPT, leader_id="n1"),
        REQUESTS[0],
    ),
    (RaftCode.HEART_BEAT, HeartbeatResponse(), REQUESTS[2]),
    (RaftCode.HEART_BEAT, HeartbeatResponse(term=9, code=Code.EXPIRED_TERM), REQUESTS[2]),
    (
        RaftCode.PUSH,
        PushResponse(term=3, index=7, count=2, begin_index=0, end_index=8),
        REQUESTS[5],
    ),
    (RaftCode.PUSH, PushResponse(term=3, code=Code.INCONSISTENT_STATE), REQUESTS[3]),
    (RaftCode.LEADERSHIP_TRANSFER, TransferResponse(term=4, code=Code.SUCCESS), REQUESTS[6]),
]


def pushed(**changes: Any) -> dict[str, Any]:
    """Return a push with one entry, as Java sends it, with changed fields."""
    fields = {
        "batch": False,
        "batchEntry": [],
        "code": 200,
        "commitIndex": -1,
        "count": 1,
        "entry": entry_fields(ENTRY),
        "firstEntryIndex": 7,
        "group": "g",
        "lastEntryIndex": 7,
        "leaderId": "n1",
        "localId": "n1",
        "remoteId": "n0",
        "term": 3,
        "totalSize": 0,
        "type": "APPEND",
    }
    return {**fields, **changes}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_request_survives(request_: Request) -> None:
    fields = decode_fields(encode_request(request_))
    assert decode_request(code_of(request_), fields) == request_


@pytest.mark.parametrize(("code", "response", "request_"), RESPONSES)
def test_a_response_survives(code: int, response: Response, request_: Request) -> None:
    assert decode_response(code, encode_response(response, request_)) == response


def test_a_push_of_java_is_read() -> None:
    request = decode_request(RaftCode.PUSH, pushed())
    assert request == PushRequest(type=PushType.APPEND, commit_index=-1, entries=(ENTRY,), **BASE)
    batch = decode_request(RaftCode.PUSH, pushed(batchEntry=[entry_fields(ENTRY)], entry=None))
    assert batch == request


def test_answers_of_java_are_read() -> None:
    vote = (
        b'{"code":200,"group":"interop","leaderId":"n1","localId":"n1","remoteId":"n0","term":0,'
        b'"voteResult":"REJECT_ALREADY_VOTED"}'
    )
    assert decode_response(RaftCode.VOTE, vote) == VoteResponse(
        term=0, leader_id="n1", vote_result=VoteResult.REJECT_ALREADY_VOTED
    )
    assert decode_response(RaftCode.HEART_BEAT, b'{"code":200,"term":-1}') == HeartbeatResponse()


def test_a_heartbeat_is_answered_as_by_java() -> None:
    assert orjson.loads(encode_response(HeartbeatResponse(), REQUESTS[2])) == {
        "code": 200,
        "term": -1,
    }


def test_a_vote_repeats_the_request() -> None:
    fields = orjson.loads(encode_response(VoteResponse(term=4), REQUESTS[0]))
    assert fields == {
        "code": 200,
        "term": 4,
        "group": "g",
        "localId": "n1",
        "remoteId": "n0",
        "leaderId": "n1",
        "voteResult": "UNKNOWN",
    }


def test_the_answer_to_a_commit_has_no_index() -> None:
    assert b"index" not in encode_response(PushResponse(term=3), REQUESTS[3])


def test_missing_fields_have_javas_defaults() -> None:
    assert decode_request(RaftCode.PUSH, {}) == PushRequest(
        group="",
        local_id="",
        remote_id="",
        leader_id=None,
        term=-1,
        type=PushType.APPEND,
        commit_index=-1,
    )
    assert decode_response(RaftCode.PUSH, b"{}") == PushResponse()


def test_unknown_values_of_a_later_version_are_no_answer() -> None:
    later = decode_response(RaftCode.VOTE, b'{"code":999,"voteResult":"REJECT_WHATEVER"}')
    assert later == VoteResponse(code=Code.UNKNOWN, vote_result=VoteResult.UNKNOWN)


@pytest.mark.parametrize(
    "changes",
    [
        {"term": "3"},
        {"term": True},
        {"term": 3.0},
        {"term": -2},
        {"term": MAX_TERM + 1},
        {"term": 2**64},
        {"commitIndex": 2**63},
        {"group": 5},
        {"group": "g" * 256},
        {"localId": ["n1"]},
        {"type": "DELETE"},
        {"type": 1},
        {"batchEntry": {}},
        {"batchEntry": [entry_fields(ENTRY)] * (MAX_ENTRIES + 1)},
        {"entry": []},
        {"entry": {}},
        {"entry": {**entry_fields(ENTRY), "body": "aGVsbG8"}},
        {"entry": {**entry_fields(ENTRY), "body": "aGVsbG8=\n"}},
        {"entry": {**entry_fields(ENTRY), "body": "ä"}},
        {"entry": {**entry_fields(ENTRY), "body": ""}},
        {"entry": {**entry_fields(ENTRY), "body": 5}},
        {"entry": {**entry_fields(ENTRY), "size": 54}},
        {"entry": {**entry_fields(ENTRY), "magic": 2}},
        {"entry": {**entry_fields(ENTRY), "channel": 1}},
        {"entry": {**entry_fields(ENTRY), "index": -1}},
        {"entry": {**entry_fields(ENTRY), "pos": -1}},
        {"entry": {**entry_fields(ENTRY), "term": -1}},
    ],
)
def test_a_bad_push_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BodyError):
        decode_request(RaftCode.PUSH, pushed(**changes))


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"\xff", b'{"term":1}x', b"7"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_fields(body)
    with pytest.raises(BodyError):
        decode_response(RaftCode.VOTE, body)


def test_a_run_is_not_json() -> None:
    push = PushRequest(type=PushType.APPEND, commit_index=0, run=Run(0, 1, 0, bytes(50)), **BASE)
    with pytest.raises(AssertionError):
        encode_request(push)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    code=st.sampled_from([51001, 51002, 51004, 51005]),
    key=st.sampled_from([*pushed(), "ledgerEndIndex", "transferId", "voteResult", "endIndex"]),
    value=_VALUES,
)
def test_any_value_is_read_or_refused(code: int, key: str, value: object) -> None:
    fields = {**pushed(), key: value}
    with suppress(BodyError):
        decode_request(code, fields)
    with suppress(BodyError, orjson.JSONEncodeError):
        decode_response(code, orjson.dumps(fields))
