from typing import Any

class SendTemplate:
    def __init__(self, pieces: tuple[bytes, ...]) -> None: ...
    def encode(
        self,
        sys_flag: int,
        born_timestamp: int,
        message_flag: int,
        properties: str,
        flag: int,
        opaque: int,
        body: bytes,
    ) -> bytes: ...

def inner_messages(bodies: list[bytes], properties: list[str]) -> bytes: ...
def read_answers(
    chunk: bytes, sends: dict[int, Any], max_frame: int, answer_type: type[Any]
) -> tuple[list[tuple[int, Any]], int]: ...
def fault_count() -> int: ...
