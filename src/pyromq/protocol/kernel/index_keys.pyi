from mmap import mmap

def fault_count() -> int: ...

class IndexKeys:
    def __init__(self) -> None: ...
    def read(
        self,
        log: bytes | bytearray | memoryview | mmap,
        start: int,
        end_offset: int,
        prefix: int = 0,
    ) -> tuple[int, int, int, bool, int]: ...
    def bounds(self, first: int, count: int) -> tuple[int, int, int, int]: ...
    def link(
        self,
        file: bytearray | mmap,
        slots_at: int,
        slot_count: int,
        number: int,
        begin: int,
        first: int,
        count: int,
    ) -> tuple[bytes, int]: ...
    def enter(
        self, file: bytearray | mmap, slots_at: int, number: int, first: int, count: int
    ) -> None: ...
