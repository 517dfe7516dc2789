from collections.abc import Callable, Sized
from typing import Any, Protocol

class Segments(Protocol):
    @property
    def files(self) -> list[Any]: ...
    @property
    def segment_size(self) -> int: ...

class Watermarks(Protocol):
    @property
    def written(self) -> int: ...

class Unsealed(Protocol):
    @property
    def touched(self) -> Sized: ...
    def seal(self) -> None: ...

def fault_count() -> int: ...

class Pulls:
    def __init__(
        self,
        json: tuple[bytes, ...],
        binary: tuple[bytes, ...],
        queues: dict[tuple[str, int], Any],
        log: Segments,
        watermarks: Watermarks,
        unsealed: Unsealed,
        is_in_memory: Callable[[Any, int, int], bool],
        commit: Callable[[Any, Any, int], None],
        limits: tuple[int, ...],
    ) -> None: ...
    def add(
        self,
        fields: tuple[bytes | None, ...],
        owner: object,
        queue_key: tuple[str, int],
        max_count: int,
        max_examined: int,
        commits: bool,
        broker_id: int,
        codes: bytes | None,
    ) -> None: ...
    def clear(self) -> None: ...
    def take_counts(self) -> list[tuple[Any, int, int, int, int]]: ...
    def run(
        self, chunk: bytes, start: int, connection: object, responses: list[bytes], room: int
    ) -> int: ...
