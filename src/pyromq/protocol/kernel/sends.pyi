from collections.abc import Mapping
from typing import Protocol

from pyromq.protocol.kernel.signatures import Signatures

class Queue(Protocol):
    @property
    def next_offset(self) -> int: ...
    @property
    def room(self) -> int: ...

def fault_count() -> int: ...

class Sends:
    def __init__(
        self,
        store_host: bytes,
        host_flag: int,
        id_prefix: bytes,
        cluster: bytes,
        json: tuple[bytes, ...],
        binary: tuple[bytes, ...],
        batch_properties: Mapping[str, bytes],
        max_record: int,
        max_body: int,
        max_batch_count: int,
        max_batch_size: int,
    ) -> None: ...
    def add_queue(self, topic: bytes, queue_id: int, queue: Queue) -> None: ...
    def remove_queue(self, topic: bytes, queue_id: int) -> None: ...
    def reset(self) -> None: ...
    def run(
        self,
        chunk: bytes,
        start: int,
        position: int,
        limit: int,
        store_timestamp: int,
        born_host: bytes,
        entry_index: int = -1,
        entry_term: int = -1,
        guard: Signatures | None = None,
    ) -> tuple[int, memoryview | bytes, list[tuple[Queue, bytes, int]], bytes]: ...
