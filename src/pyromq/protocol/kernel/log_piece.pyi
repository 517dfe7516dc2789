def fault_count() -> int: ...

class PieceExaminer:
    def __init__(self) -> None: ...
    def examine(
        self,
        data: bytes | bytearray | memoryview,
        base: int,
        check_crc: bool,
        in_segment: int,
        prefix: int = 0,
    ) -> tuple[int, bool, bytes, list[tuple[bytes, int, int, bool]] | None, bytes, bytes]: ...
