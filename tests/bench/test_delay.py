from __future__ import annotations

import pytest

from bench.delay import BOUND, delayed_send, render, waiting_pull
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import decode_frame
from pyromq.protocol.wire.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2

JAVA = {
    "p50_ms": 50.0,
    "p99_ms": 100.0,
    "worst_ms": 120.0,
    "cpu_us": 90.0,
    "server_cores": 0.2,
    "load_cores": 0.1,
    "refused": 0.0,
}
OURS = {**JAVA, "p50_ms": 50.0 * BOUND, "p99_ms": 100.0 * BOUND}


def test_the_table_says_whether_it_is_enough() -> None:
    text, kept = render({"java": JAVA, "pyromq": OURS}, 20.0)
    assert kept
    assert "ratio to Java: median 0.50, p99 0.50 (bound: at most 0.5, kept)" in text


@pytest.mark.parametrize("figure", ["p50_ms", "p99_ms"])
def test_either_figure_can_miss(figure: str) -> None:
    text, kept = render({"java": JAVA, "pyromq": {**OURS, figure: JAVA[figure]}}, 20.0)
    assert not kept
    assert "MISSED" in text


def test_one_server_has_no_ratio() -> None:
    text, kept = render({"pyromq": OURS}, 20.0)
    assert kept
    assert "ratio" not in text


def test_the_requests_are_what_they_say() -> None:
    sent = decode_frame(delayed_send(9))
    assert sent.code == RequestCode.SEND_MESSAGE_V2
    header = SendMessageRequestHeaderV2.decode(sent.ext_fields)
    assert (header.topic, header.queue_id) == ("BenchmarkDelay", 1)
    assert decode_properties(header.properties or "")["DELAY"] == "1"
    assert len(sent.body) == 128

    pull = decode_frame(waiting_pull(3, 77))
    assert pull.code == RequestCode.PULL_MESSAGE
    asked = PullMessageRequestHeader.decode(pull.ext_fields)
    assert (asked.queue_id, asked.queue_offset, asked.suspend_timeout_millis) == (3, 77, 15_000)
