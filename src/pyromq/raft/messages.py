"""The bodies that DLedger nodes exchange, as values.

A body has the fields of Java's JSON object (docs of a field are there where it surprises). The
envelope is not sent as such: over remoting, the sender is the peer of the connection and the
request id is the opaque number of the frame.

Pure values; used on every thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from pyromq.raft.format import Run

#: An index or a term of an empty log.
NONE: Final = -1


class Code(IntEnum):
    """DLedger's response codes, as far as nodes send them."""

    UNKNOWN = -1
    SUCCESS = 200
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    PUSH_REQUEST_IS_FULL = 421
    INTERNAL_ERROR = 500
    LEADER_PENDING_FULL = 503
    LEADER_TRANSFERRING = 506


class VoteResult(Enum):
    """A voter's decision; the name is what travels."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(Enum):
    """The four kinds of a push; the name is what travels."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. Two nodes hold the same entry if all fields are equal."""

    index: int
    term: int
    pos: int
    #: Bytes in the data file: header and body.
    size: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Fields of every request. `remote_id` is the recipient, `local_id` the sender."""

    group: str
    local_id: str
    remote_id: str
    leader_id: str | None
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Fields of every response; Java fills few of them."""

    term: int = NONE
    code: Code = Code.SUCCESS
    leader_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(Request):
    """Asks for a vote; `leader_id` is the candidate."""

    ledger_end_index: int
    ledger_end_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(Response):
    """Answers a vote; `term` is the voter's."""

    vote_result: VoteResult = VoteResult.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Request):
    """Tells that the leader is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Response):
    """Answers a heartbeat; success has no term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest(Request):
    """Brings entries or a commit index; Java has `entry` for one, `batchEntry` for several.

    Between our nodes, an APPEND carries a `run` instead of `entries`, never both.
    """

    type: PushType
    commit_index: int
    entries: tuple[Entry, ...] = ()
    run: Run | None = None

    @property
    def first_index(self) -> int:
        """Index of the first entry."""
        if self.run is not None:
            return self.run.first_index
        return self.entries[0].index if self.entries else NONE

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        if self.run is not None:
            return self.run.last_index
        return self.entries[-1].index if self.entries else NONE

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.entries) if self.run is None else self.run.count


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResponse(Response):
    """Answers a push; `term` is the request's, `begin_index` and `end_index` the follower's own."""

    index: int = NONE
    count: int = 0
    begin_index: int = NONE
    end_index: int = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest(Request):
    """Orders the leader to hand over, or the transferee to take over."""

    transfer_id: str
    transferee_id: str
    take_leadership_ledger_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResponse(Response):
    """Answers a transfer, once it has succeeded or failed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for the response of a request that failed: no connection, or a time-out."""


Body = Request | Response | Failed


@dataclass(frozen=True, slots=True)
class Envelope:
    """A body with its sender, its recipient, and the id that joins response and request."""

    sender: str
    recipient: str
    request_id: int
    body: Body
