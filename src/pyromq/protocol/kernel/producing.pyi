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
    def encode_plain(
        self, head: str, number: int, tags: str, born_timestamp: int, opaque: int, body: bytes
    ) -> tuple[bytes, str]: ...

def plain_batch(
    bodies: list[bytes], tags: list[str], head: str, numbers: list[int]
) -> tuple[bytes, list[str]]: ...
def read_answers(
    chunk: bytes, sends: dict[int, Any], max_frame: int, answer_type: type[Any]
) -> tuple[list[tuple[int, Any]], int]: ...
def send_results(
    answer: tuple[Any, ...], keys: list[str], queue: Any, status: Any, result_type: type[Any]
) -> list[Any] | None: ...
def fault_count() -> int: ...
