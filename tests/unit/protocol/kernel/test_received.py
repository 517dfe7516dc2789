from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.received import PlainRecord
from pyromq.protocol import kernel
from pyromq.protocol.message.record import HEAD_SIZE_V4, head_size
from pyromq.protocol.message.sysflag import BORN_HOST_V6, STORE_HOST_V6

compiled: Any = kernel.load("received") or pytest.skip(
    "no compiled kernel installed", allow_module_level=True
)

_FIELDS = [
    *("flag", "physical_offset", "sys_flag", "born_timestamp", "store_timestamp"),
    *("reconsume_times", "prepared_transaction_offset", "_born_host", "_store_host"),
]
_SYS_FLAG = slice(36, 40)


@given(
    st.binary(min_size=HEAD_SIZE_V4 + 24, max_size=HEAD_SIZE_V4 + 24),
    st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]),
)
def test_the_fields_of_a_head_are_those_of_the_python_class(noise: bytes, host_bits: int) -> None:
    head = bytearray(noise)
    head[_SYS_FLAG] = host_bits.to_bytes(4, "big")
    records = PlainRecord(), compiled.Record()
    for record in records:
        record._head = bytes(head[: head_size(host_bits)])
    for failures in range(3):
        plain, fast = ({name: getattr(each, name) for name in _FIELDS} for each in records)
        assert plain == fast
        for record in records:
            record.count_failure()
        assert records[0].reconsume_times == plain["reconsume_times"] + 1, failures


def test_a_record_without_content() -> None:
    record = compiled.Record()
    assert record.flag == 0
    for name in ("body", "_unreadable"):
        with pytest.raises(AttributeError, match=name):
            getattr(record, name)


@pytest.mark.parametrize("size", [0, 39, HEAD_SIZE_V4 - 1, HEAD_SIZE_V4 + 1, HEAD_SIZE_V4 + 12])
def test_a_head_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a head of {size} bytes"):
        compiled.Record()._head = bytes(size)


@given(st.binary(max_size=200))
def test_bytes_that_are_not_records_are_left_to_python(data: bytes) -> None:
    assert compiled.decode(data, None, "t", b"\x01t", compiled.Record) in ([], None)
    assert compiled.fault_count() == 0
