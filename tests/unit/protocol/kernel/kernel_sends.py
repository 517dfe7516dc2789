"""A `Sends` with plain settings, and requests for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests import kernel_builds
from tests.support.requests import send_request

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
CLUSTER = b"CLUSTER\x01C"
NOW = 1_700_000_000_000


@dataclass
class Queue:
    """A queue as the kernel sees it."""

    next_offset: int = 0
    room: int = 1 << 40


@dataclass
class Broker:
    """Sends to queues that the test adds."""

    max_record: int = 32767
    sends: Any = field(init=False)
    position: int = 0

    def __post_init__(self) -> None:
        module = kernel_builds.load(kernel_builds.CHECKED, "sends")
        self.sends = module.Sends(
            HOST,
            0,
            HOST.hex().upper().encode(),
            CLUSTER,
            (b'{"ids":"', b'","queue":"', b'","offset":"', b'","opaque":', b"}"),
            (b"", b"", b"", b"", b"", b""),
            {"": CLUSTER},
            self.max_record,
            4 << 20,
            8192,
            16 << 20,
        )

    def add(self, topic: str = "T", queue_id: int = 1, **state: int) -> Queue:
        queue = Queue(**state)
        self.sends.add_queue(topic.encode(), queue_id, queue)
        return queue

    def run(self, *requests: RemotingCommand | bytes, limit: int = 1 << 40) -> tuple[Any, ...]:
        """Return how many requests were served, records, queues and responses."""
        frames = [each if isinstance(each, bytes) else each.encode() for each in requests]
        ends = [sum(map(len, frames[:number])) for number in range(len(frames) + 1)]
        taken, records, queues, responses = self.sends.run(
            b"".join(frames), 0, self.position, limit, NOW, HOST
        )
        assert kernel_builds.fault_count(kernel_builds.CHECKED) == 0
        return ends.index(taken), bytes(records), queues, responses

    def serves(self, request: RemotingCommand | bytes) -> bool:
        served: int = self.run(request)[0]
        return served == 1


def send(code: RequestCode = RequestCode.SEND_MESSAGE_V2, **values: Any) -> RemotingCommand:
    return send_request(code, **values)
