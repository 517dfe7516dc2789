"""The port of a node: requests of its peers, and of outside clients.

| request | answer |
| --- | --- |
| VOTE, HEART_BEAT, PUSH, LEADERSHIP_TRANSFER, RAFT_PUSH | what the core decides |
| METADATA | the peers and the leader |
| GET | an entry that is committed, by the leader only |
| APPEND, PULL | 303 UNSUPPORTED |

APPEND is refused because the log is a broker's: an entry that is not a message would end its
dispatch. Java's broker accepts it. PULL has no handler in Java either.

A request for another node or group is answered 401 or 400, as in Java; so is one by a node that is
not in the list of peers (401), except for the order of an outside client to transfer leadership. A
body that cannot be read is answered 411, bytes that are no frame close the connection. Each is
logged once a minute per address.

There is no authentication, as in Java: TLS and a shared secret would be checked where a connection
is accepted. Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pyromq.base.log_lines import Repeats
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, RequestCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    PREFIX_SIZE,
    TOTAL_SIZE,
    FrameError,
    RawFrame,
    pack_prefix,
)
from pyromq.protocol.wire.header_json import Header
from pyromq.raft.messages import (
    NONE,
    Code,
    Entry,
    PushRequest,
    PushResponse,
    Request,
    Response,
    TransferRequest,
)
from pyromq.raft.network.binary_push import (
    GREETING,
    VERSION,
    decode_push,
    encode_answer,
    names_of,
)
from pyromq.raft.network.json_bodies import (
    CHECKSUM,
    BodyError,
    Fields,
    RaftCode,
    check_frame,
    checksum_of,
    decode_fields,
    decode_request,
    encode_fields,
    encode_response,
    entry_fields,
    name,
    number,
)
from pyromq.remoting.connection import Connection, HotHandler
from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from pyromq.tls.server import ServerTls

logger = logging.getLogger(__name__)

_LOG_SECONDS: Final = 60.0
_MAX_OPAQUE: Final = 0x7FFFFFFF
_HEADER: Final = (
    b'{"code":200,"extFields":{"%s":"%d","%s":"%%d"},"flag":1,"language":"PYTHON","opaque":%%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}'
    % (GREETING.encode(), VERSION, CHECKSUM.encode(), PROTOCOL_VERSION)
)


class Reply:
    """Where the answer to a request goes."""

    __slots__ = ("_connection", "_is_oneway", "_opaque", "_request", "answers", "since")

    def __init__(
        self,
        connection: Connection,
        opaque: int,
        request: Request,
        answers: list[bytes],
        *,
        is_oneway: bool,
    ) -> None:
        self._connection = connection
        self._opaque = opaque
        self._request = request
        self._is_oneway = is_oneway
        #: The answers of the request's chunk, until they are written.
        self.answers: list[bytes] | None = answers
        #: The time of the request, for the owner.
        self.since = 0

    def send(self, response: Response) -> None:
        """Send the answer, with the others of the chunk if it is not over yet."""
        request = self._request
        if self._is_oneway:
            return
        if isinstance(request, PushRequest) and request.run is not None:
            assert isinstance(response, PushResponse)
            frame = encode_answer(response, self._opaque)
        else:
            frame = json_frame(encode_response(response, request), self._opaque)
        if self.answers is not None:
            self.answers.append(frame)
        else:
            self._connection.write(frame)


def json_frame(body: bytes, opaque: int) -> bytes:
    """Return the frame of an answer in JSON."""
    header = _HEADER % (checksum_of(200, opaque, body), opaque)
    size = PREFIX_SIZE - TOTAL_SIZE + len(header) + len(body)
    return pack_prefix(size, len(header)) + header + body


class Member(Protocol):
    """The node behind a port."""

    @property
    def term(self) -> int:
        """Return the current term."""

    @property
    def leader(self) -> str | None:
        """Return the leader of the current term, if it is known."""

    def requested(self, request: Request, reply: Reply) -> None:
        """Handle the request of another node; the reply may be used now or later."""

    def chunk_ended(self) -> None:
        """Do what can wait until all requests of a chunk are handled."""

    def committed_entry(self, index: int) -> Entry | None:
        """Return a committed entry, or None."""

    def sender_left(self, peer: str) -> None:
        """Take note that a connection ended on which a node has sent heartbeats."""


class RaftServer:
    """Listens on a node's port."""

    def __init__(
        self,
        group: str,
        self_id: str,
        peers: Mapping[str, tuple[str, int]],
        node: Member,
        tls: ServerTls | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        self._tls = tls
        self._limits = limits
        self._group = group
        self._self_id = self_id
        self._peers = peers
        self._node = node
        self._others = frozenset(peers) - {self_id}
        self._leaders = {
            names: peer
            for peer in self._others
            if (names := names_of(group, peer, self_id)) is not None
        }
        self._complaints = Repeats(asyncio.get_running_loop().time, _LOG_SECONDS)
        self._server: RemotingServer | None = None
        #: Nodes that sent heartbeats, by their connections.
        self._senders: dict[Connection, str] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError."""
        mode = None if self._tls is None else self._tls.replication_mode
        self._server = RemotingServer(
            host=host, port=port, limits=self._limits, tls=self._tls, tls_mode=mode
        )
        node = (RaftCode.VOTE, RaftCode.HEART_BEAT, RaftCode.PUSH, RaftCode.LEADERSHIP_TRANSFER)
        handlers: dict[int, HotHandler] = {code: self._handler_of(code) for code in node}
        outside: dict[RaftCode, Callable[[Fields], Fields]] = {
            RaftCode.METADATA: self._metadata,
            RaftCode.GET: self._get,
            RaftCode.APPEND: self._unsupported,
            RaftCode.PULL: self._unsupported,
        }
        for code, answer in outside.items():
            handlers[code] = self._outside_handler_of(code, answer)
        handlers[RequestCode.RAFT_PUSH] = self._take_pushes
        service: Service[Connection] = Service(
            handlers={},
            hot_handlers=handlers,
            on_chunk_end=self._node.chunk_ended,
            on_disconnect=self._left,
        )
        await self._server.start(service)
        return self._server.port

    async def stop(self) -> None:
        """Close the port and all its connections."""
        if self._server is not None:
            await self._server.stop()

    def _left(self, connection: Connection) -> None:
        sender = self._senders.pop(connection, None)
        if sender is not None:
            self._node.sender_left(sender)

    # Requests of nodes

    def _take_pushes(
        self, connection: Connection, frames: list[RawFrame], answers: list[bytes]
    ) -> None:
        requested = self._node.requested
        replies = []
        for _, header, body in frames:
            opaque, is_oneway = _read_header(header)
            try:
                request = decode_push(body, self._group, self._self_id, self._leaders)
            except BodyError as error:
                self._complain(connection, RequestCode.RAFT_PUSH, str(error))
                refusal = PushResponse(code=Code.UNEXPECTED_ARGUMENT)
                answers.append(encode_answer(refusal, opaque))
                continue
            reply = Reply(connection, opaque, request, answers, is_oneway=is_oneway)
            replies.append(reply)
            requested(request, reply)
        for reply in replies:
            reply.answers = None

    def _handler_of(self, code: RaftCode) -> HotHandler:
        def handle(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
            for _, header, body in frames:
                opaque, is_oneway = _read_header(header)
                request = self._decoded(connection, code, header, body, answers)
                if request is not None:
                    if code is RaftCode.HEART_BEAT:
                        self._senders[connection] = request.local_id
                    reply = Reply(connection, opaque, request, answers, is_oneway=is_oneway)
                    self._node.requested(request, reply)
                    reply.answers = None

        return handle

    def _decoded(
        self,
        connection: Connection,
        code: RaftCode,
        header: Header,
        body: bytes,
        answers: list[bytes],
    ) -> Request | None:
        """Return the request of a frame, or None if it was refused."""
        try:
            check_frame(header, body)
            request = decode_request(code, decode_fields(body))
        except BodyError as error:
            refusal, reason = Code.UNEXPECTED_ARGUMENT, str(error)
        else:
            found = self._misrouted(request)
            if found is None:
                return request
            refusal, reason = found
        self._complain(connection, code, reason)
        answers.append(json_frame(encode_fields(self._refusal(refusal)), header.get("opaque", 0)))
        return None

    def _misrouted(self, request: Request) -> tuple[Code, str] | None:
        found = self._misaddressed(request.remote_id, request.group)
        if found is None and request.local_id not in self._others:
            is_order = isinstance(request, TransferRequest) and (
                request.transfer_id == self._self_id and not request.local_id
            )
            if not is_order:
                reason = f"request of {request.local_id!r}, which is not in the list of peers"
                return Code.UNKNOWN_MEMBER, reason
        return found

    def _misaddressed(self, remote_id: str, group: str) -> tuple[Code, str] | None:
        if remote_id != self._self_id:
            return Code.UNKNOWN_MEMBER, f"request for node {remote_id!r}, not {self._self_id}"
        if group != self._group:
            return Code.UNKNOWN_GROUP, f"request for group {group!r}, not {self._group}"
        return None

    def _refusal(self, code: Code) -> Fields:
        fields: Fields = {"group": self._group, "code": int(code), "term": self._node.term}
        if self._node.leader is not None:
            fields["leaderId"] = self._node.leader
        return fields

    def _complain(self, connection: Connection, code: int, reason: str) -> None:
        host = connection.remote_address.rpartition(":")[0]
        self._complaints.ended()
        if self._complaints.is_wanted((host, code), 1):
            logger.warning("%s: raft request %d refused: %s", host, code, reason)

    # Requests of outside clients

    def _outside_handler_of(
        self, code: RaftCode, answer_of: Callable[[Fields], Fields]
    ) -> HotHandler:
        def handle(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
            for _, header, body in frames:
                opaque, is_oneway = _read_header(header)
                try:
                    fields = decode_fields(body)
                    found = self._misaddressed(name(fields, "remoteId"), name(fields, "group"))
                    answer = answer_of(fields) if found is None else self._refusal(found[0])
                    reason = "" if found is None else found[1]
                except BodyError as error:
                    answer, reason = self._refusal(Code.UNEXPECTED_ARGUMENT), str(error)
                if answer["code"] == Code.UNSUPPORTED:
                    reason = "not supported in the log of a broker"
                if reason:
                    self._complain(connection, code, reason)
                if not is_oneway:
                    answers.append(json_frame(encode_fields(answer), opaque))

        return handle

    def _metadata(self, fields: Fields) -> Fields:  # noqa: ARG002 - as the others
        peers = {peer: f"{host}:{port}" for peer, (host, port) in self._peers.items()}
        return {**self._refusal(Code.SUCCESS), "term": NONE, "peers": peers}

    def _get(self, fields: Fields) -> Fields:
        index = number(fields, "beginIndex", 0, least=0)
        if self._node.leader != self._self_id:
            return self._refusal(Code.NOT_LEADER)
        entry = self._node.committed_entry(index)
        if entry is None:
            return self._refusal(Code.INDEX_OUT_OF_RANGE)
        return {**self._refusal(Code.SUCCESS), "term": NONE, "entries": [entry_fields(entry)]}

    def _unsupported(self, fields: Fields) -> Fields:  # noqa: ARG002 - as the others
        return self._refusal(Code.UNSUPPORTED)


def _read_header(header: Header) -> tuple[int, bool]:
    """Return the opaque of a request, and whether nobody waits for its answer."""
    opaque, flag = header.get("opaque", 0), header.get("flag", 0)
    if type(opaque) is not int or not -_MAX_OPAQUE - 1 <= opaque <= _MAX_OPAQUE:
        raise FrameError(f"header field opaque is {opaque!r:.40}, not a 32-bit integer")
    if type(flag) is not int:
        raise FrameError(f"header field flag is {flag!r:.40}, not a 32-bit integer")
    return opaque, flag & FLAG_ONEWAY != 0
