from typing import TypeAlias

from pyromq.protocol.message.bulk import Buffer, Longs

#: Number of nulls, validity or None, offsets if values have different lengths, values.
Column: TypeAlias = tuple[int, bytes | None, bytes] | tuple[int, bytes | None, bytes, bytes]

class ColumnDecoder:
    def __init__(
        self, columns: list[tuple[str, int | bytes | None]], earliest: int, latest: int
    ) -> None: ...
    def decode(self, data: Buffer, starts: Longs) -> list[Column] | None: ...

def find_starts(data: Buffer) -> tuple[bytes, int]: ...
def fault_count() -> int: ...
