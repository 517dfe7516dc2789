"""Plain sends in the kernel: room, order, and what a call returns.

`tests/unit/broker/handlers/test_plain_sends.py` compares all bytes with the Python handlers.
"""

from __future__ import annotations

from pyromq.protocol.message.record import decode_records, encode_inner_message
from pyromq.protocol.message.units import Entry
from pyromq.protocol.wire.codes import RequestCode
from tests.unit.protocol.kernel.kernel_sends import CLUSTER, NOW, Broker, send


def test_a_message_becomes_a_record_an_entry_and_a_response() -> None:
    broker = Broker(position=5000)
    queue = broker.add(next_offset=41)

    served, records, queues, responses = broker.run(
        send(body=b"body", properties="TAGS\x01a", opaque=9)
    )

    (record,) = decode_records(records)
    assert served == 1
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 1, 41)
    assert (record.physical_offset, record.store_timestamp) == (5000, NOW)
    assert (record.body, record.raw_properties) == (b"body", b"TAGS\x01a\x02" + CLUSTER)
    assert [(owner, Entry.unpack(data), count) for owner, data, count in queues] == [
        (queue, Entry(5000, record.size, ord("a")), 1)
    ]
    assert responses.endswith(b'"queue":"1","offset":"41","opaque":9}')


def test_queues_are_returned_in_the_order_of_their_first_message() -> None:
    broker = Broker()
    owners = {number: broker.add(queue_id=number) for number in range(3)}

    order = (2, 0, 2, 1, 0, 2)
    _, records, queues, _ = broker.run(*(send(queueId=str(number)) for number in order))

    assert [owner for owner, _, _ in queues] == [owners[2], owners[0], owners[1]]
    assert [count for _, _, count in queues] == [3, 2, 1]
    assert [r.queue_offset for r in decode_records(records)] == [0, 0, 1, 0, 1, 2]


def test_a_batch_is_put_as_a_whole_or_not_at_all() -> None:
    broker = Broker()
    broker.add()
    good = b"".join(encode_inner_message(b"%d" % number, b"", 0) for number in range(3))
    code = RequestCode.SEND_BATCH_MESSAGE

    served, records, queues, _ = broker.run(send(code, body=good))
    assert (served, len(decode_records(records)), queues[0][2]) == (1, 3, 3)
    assert broker.run(send(code, body=good + b"\0")) == (0, b"", [], b"")
    assert broker.run(send(code, body=b"")) == (0, b"", [], b"")


def test_no_room_in_the_log() -> None:
    broker = Broker()
    broker.add()
    size = len(broker.run(send())[1])

    assert broker.run(send(), send(), limit=size)[0] == 1
    assert broker.run(send(), limit=size - 1)[0] == 0


def test_no_room_in_the_queue() -> None:
    broker = Broker()
    broker.add(next_offset=8, room=10)

    assert broker.run(send(), send(), send())[0] == 2


def test_a_large_record_is_for_the_python_code() -> None:
    broker = Broker(max_record=300)
    broker.add()

    assert broker.run(send(body=bytes(100)))[0] == 1
    assert broker.run(send(body=bytes(300)))[0] == 0


def test_oneway_gets_no_response() -> None:
    broker = Broker()
    broker.add()

    served, records, _, responses = broker.run(send(oneway=True))

    assert (served, len(decode_records(records)), responses) == (1, 1, b"")


def test_it_stops_at_the_first_frame_that_is_not_a_plain_send() -> None:
    broker = Broker()
    broker.add()

    assert broker.run(send(), send(), send(topic="unknown"), send())[0] == 2
    assert broker.run(send(), send(properties="DELAY\x011"), send())[0] == 1
    assert broker.run(send(sysFlag="4"))[0] == 0
    assert broker.run(send(code=RequestCode.SEND_REPLY_MESSAGE_V2))[0] == 0


def test_records_stay_until_the_reset() -> None:
    broker = Broker()
    broker.add()
    frame = send().encode()

    first = broker.sends.run(frame, 0, 0, 1 << 40, NOW, bytes(8))[1]
    second = broker.sends.run(frame, 0, len(first), 1 << 40, NOW, bytes(8))[1]

    assert [record.physical_offset for record in decode_records(bytes(first) + bytes(second))] == [
        0,
        len(first),
    ]
