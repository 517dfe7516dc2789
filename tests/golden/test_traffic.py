"""Decode every frame, header and body recorded between Java's client, broker and NameServer.

Also decode the records in the responses to pulls.
"""

from __future__ import annotations

import json
import struct
import zlib

from pyromq.protocol.java.fastjson import parse_json
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import body_crc, decode_records, encode_inner_message
from pyromq.protocol.wire import bodies, headers
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, FrameReader, RemotingCommand, decode_frame
from pyromq.protocol.wire.header_codec import Header
from tests.golden.golden_data import Entry, cut, read_bytes, read_index
from tests.support.each import for_each

TRAFFIC: list[Entry] = read_index("traffic")
STREAM = read_bytes("traffic")

#: For each code: the header of the request and, on SUCCESS, of the response.
HEADERS: dict[RequestCode, tuple[type[Header] | None, type[Header] | None]] = {
    RequestCode.SEND_MESSAGE_V2: (
        headers.SendMessageRequestHeaderV2,
        headers.SendMessageResponseHeader,
    ),
    RequestCode.SEND_BATCH_MESSAGE: (
        headers.SendMessageRequestHeaderV2,
        headers.SendMessageResponseHeader,
    ),
    RequestCode.PULL_MESSAGE: (headers.PullMessageRequestHeader, headers.PullMessageResponseHeader),
    RequestCode.QUERY_CONSUMER_OFFSET: (
        headers.QueryConsumerOffsetRequestHeader,
        headers.QueryConsumerOffsetResponseHeader,
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: (headers.UpdateConsumerOffsetRequestHeader, None),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (headers.GetConsumerListByGroupRequestHeader, None),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: (headers.NotifyConsumerIdsChangedRequestHeader, None),
    RequestCode.UNREGISTER_CLIENT: (headers.UnregisterClientRequestHeader, None),
    RequestCode.GET_MAX_OFFSET: (
        headers.GetMaxOffsetRequestHeader,
        headers.GetMaxOffsetResponseHeader,
    ),
    RequestCode.GET_MIN_OFFSET: (
        headers.GetMinOffsetRequestHeader,
        headers.GetMinOffsetResponseHeader,
    ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (
        headers.SearchOffsetRequestHeader,
        headers.SearchOffsetResponseHeader,
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (headers.CreateTopicRequestHeader, None),
    RequestCode.REGISTER_BROKER: (
        headers.RegisterBrokerRequestHeader,
        headers.RegisterBrokerResponseHeader,
    ),
    RequestCode.UNREGISTER_BROKER: (headers.UnRegisterBrokerRequestHeader, None),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: (headers.GetRouteInfoRequestHeader, None),
    RequestCode.VIEW_MESSAGE_BY_ID: (headers.ViewMessageRequestHeader, None),
    RequestCode.QUERY_MESSAGE: (
        headers.QueryMessageRequestHeader,
        headers.QueryMessageResponseHeader,
    ),
}

#: Fields that may accompany any request header: the target broker's name and the kind of request
#: (no server reads them), and whether a query by key means the unique key.
BESIDE_HEADERS = ("bname", "ReqT", "_UNIQUE_KEY_QUERY")

every_exchange = for_each(
    "entry",
    TRAFFIC,
    lambda entry: (
        f"{entry['link']}-{RequestCode(entry['code']).name}-{Encoding(entry['encoding']).name}"
        f"-{entry['request']['start']}"
    ),
)


def exchanges(*codes: RequestCode) -> list[tuple[RemotingCommand, RemotingCommand | None]]:
    """Return requests with these codes and their responses; fail if there are none."""
    found = [commands(entry) for entry in TRAFFIC if entry["code"] in codes]
    assert found
    return found


def commands(entry: Entry) -> tuple[RemotingCommand, RemotingCommand | None]:
    request = decode_frame(cut(STREAM, entry["request"]))
    place = entry["response"]
    return request, decode_frame(cut(STREAM, place)) if place else None


@every_exchange
def test_request_and_response(entry: Entry) -> None:
    request, answer = commands(entry)
    assert (request.code, request.encoding) == (entry["code"], entry["encoding"])
    assert not request.is_response
    assert request.is_oneway == entry["oneway"] == (answer is None)
    if answer is not None:
        assert answer.is_response
        assert (answer.opaque, answer.encoding) == (request.opaque, request.encoding)
        assert answer.code == entry["outcome"]


@every_exchange
def test_decode_agrees_with_an_independent_reading(entry: Entry) -> None:
    for place in (entry["request"], entry["response"]):
        if place is not None:
            frame = cut(STREAM, place)
            command = decode_frame(frame)
            code, opaque, flag, ext_fields, body = read_by_the_book(frame)
            assert (command.code, command.opaque, command.flag) == (code, opaque, flag)
            assert command.ext_fields == ext_fields
            assert command.body == body


def read_by_the_book(frame: bytes) -> tuple[int, int, int, dict[str, str], bytes]:
    end = 8 + int.from_bytes(frame[5:8], "big")
    header, body = frame[8:end], frame[end:]
    if frame[4] == 0:
        values = json.loads(header)
        ext_fields = values.get("extFields") or {}
        return values["code"], values["opaque"], values["flag"], ext_fields, body
    code, _, _, opaque, flag, remark_length = struct.unpack_from(">hBhiii", header)
    rest = header[17 + remark_length + 4 :]
    ext_fields = {}
    while rest:
        (key_length,) = struct.unpack_from(">h", rest)
        (value_length,) = struct.unpack_from(">i", rest, 2 + key_length)
        value_start = 6 + key_length
        ext_fields[rest[2 : 2 + key_length].decode()] = rest[
            value_start : value_start + value_length
        ].decode()
        rest = rest[value_start + value_length :]
    return code, opaque, flag, ext_fields, body


@every_exchange
def test_encodes_to_the_same_command(entry: Entry) -> None:
    for place in (entry["request"], entry["response"]):
        if place is not None:
            command = decode_frame(cut(STREAM, place))
            assert decode_frame(command.encode()) == command


@every_exchange
def test_headers_read_and_write_what_java_sent(entry: Entry) -> None:
    request, answer = commands(entry)
    request_header, answer_header = HEADERS.get(RequestCode(request.code), (None, None))
    for name in BESIDE_HEADERS:
        request.ext_fields.pop(name, None)
    if request_header is not None:
        written = request_header.decode(request.ext_fields).encode()
        assert {name: written.get(name) for name in request.ext_fields} == request.ext_fields
    if answer_header is not None and answer is not None and answer.code == ResponseCode.SUCCESS:
        written = answer_header.decode(answer.ext_fields).encode()
        # MSG_REGION and TRACE_ON accompany the header of a send's response.
        assert written.items() <= answer.ext_fields.items()


def test_byte_by_byte() -> None:
    reader = FrameReader()
    found = [command for byte in STREAM for command in reader.feed(bytes((byte,)))]
    assert found == FrameReader().feed(STREAM)
    assert len(found) == sum(1 + (entry["response"] is not None) for entry in TRAFFIC)


def test_both_encodings_are_there() -> None:
    seen = {(entry["code"], entry["encoding"]) for entry in TRAFFIC}
    for code in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
    ):
        assert {(code, Encoding.JSON), (code, Encoding.ROCKETMQ)} <= seen


def test_heartbeats() -> None:
    for request, _ in exchanges(RequestCode.HEART_BEAT):
        heartbeat = bodies.HeartbeatData.decode(request.body)
        assert heartbeat.client_id
        for consumer in heartbeat.consumer_data_set:
            assert consumer.message_model is bodies.MessageModel.CLUSTERING
            topics = {subscription.topic for subscription in consumer.subscription_data_set}
            assert topics == {"Traffic", f"%RETRY%{consumer.group_name}"}
        assert parse_json(heartbeat.encode()).keys() == parse_json(request.body).keys()


def test_registrations() -> None:
    for request, _ in exchanges(RequestCode.REGISTER_BROKER):
        header = headers.RegisterBrokerRequestHeader.decode(request.ext_fields)
        assert header.body_crc32 == zlib.crc32(request.body) & 0x7FFFFFFF
        body = bodies.RegisterBrokerBody.decode(request.body, compressed=header.compressed)
        table = body.topic_config_serialize_wrapper.topic_config_table
        # A change registers one topic; other registrations contain all.
        assert len(table) == 1 or table["TBW102"].perm == 7
        assert bodies.RegisterBrokerBody.decode(body.encode()) == body


def test_routes() -> None:
    for request, answer in exchanges(RequestCode.GET_ROUTEINFO_BY_TOPIC):
        assert answer is not None
        if answer.code == ResponseCode.SUCCESS:
            route = bodies.TopicRouteData.decode(answer.body)
            assert [queues.broker_name for queues in route.queue_datas] == ["broker-a"]
            assert [*route.broker_datas[0].broker_addrs] == [0]
            # Java's 4.9.7 client is new enough to get standard JSON.
            assert parse_json(route.encode(standard_json=True)) == parse_json(answer.body)
        else:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            topic = headers.GetRouteInfoRequestHeader.decode(request.ext_fields).topic
            assert topic in (answer.remark or "")


def test_cluster_info() -> None:
    ((_, answer),) = exchanges(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert answer is not None
    info = bodies.ClusterInfo.decode(answer.body)
    assert info.cluster_addr_table == {"DefaultCluster": {"broker-a"}}
    assert info.encode() == answer.body


def test_topic_tables() -> None:
    ((_, answer),) = exchanges(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert answer is not None
    wrapper = bodies.TopicConfigSerializeWrapper.decode(answer.body)
    assert wrapper.topic_config_table["GoldenTopic"].write_queue_nums == 2
    assert parse_json(wrapper.encode()) == parse_json(answer.body)
    ((_, answer),) = exchanges(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert answer is not None
    groups = bodies.SubscriptionGroupWrapper.decode(answer.body)
    assert {"golden_json", "golden_binary"} <= groups.subscription_group_table.keys()
    assert parse_json(groups.encode()) == parse_json(answer.body)


def test_group_members() -> None:
    for _, answer in exchanges(RequestCode.GET_CONSUMER_LIST_BY_GROUP):
        assert answer is not None
        if answer.code == ResponseCode.SUCCESS:
            members = bodies.GetConsumerListByGroupResponseBody.decode(answer.body)
            assert members.consumer_id_list
            assert members.encode() == answer.body


def test_sent_messages() -> None:
    for request, answer in exchanges(RequestCode.SEND_MESSAGE_V2):
        header = headers.SendMessageRequestHeaderV2.decode(request.ext_fields)
        properties = decode_properties(header.properties or "")
        # Contains the address of an IPv4 or an IPv6 host.
        assert len(bytes.fromhex(properties["UNIQ_KEY"])) in (16, 28)
        if answer is not None:
            sent = headers.SendMessageResponseHeader.decode(answer.ext_fields)
            assert sent.queue_id == header.queue_id
            assert answer.ext_fields["TRACE_ON"] == "true"


def test_batches_equal_those_of_java() -> None:
    for request, answer in exchanges(RequestCode.SEND_BATCH_MESSAGE):
        assert answer is not None
        rest, written, count = request.body, b"", 0
        while rest:
            size, _, _, flag, body_length = struct.unpack_from(">iiiii", rest)
            body = rest[20 : 20 + body_length]
            written += encode_inner_message(body, rest[22 + body_length : size], flag)
            rest, count = rest[size:], count + 1
        assert written == request.body
        ids = headers.SendMessageResponseHeader.decode(answer.ext_fields).msg_id.split(",")
        assert len(ids) == count


def test_pulled_records() -> None:
    found = 0
    for request, answer in exchanges(RequestCode.PULL_MESSAGE):
        assert answer is not None
        if answer.code != ResponseCode.SUCCESS:
            assert not answer.body
            continue
        wanted = headers.PullMessageRequestHeader.decode(request.ext_fields)
        given = headers.PullMessageResponseHeader.decode(answer.ext_fields)
        records = decode_records(answer.body)
        offsets = [record.queue_offset for record in records]
        assert offsets == list(range(wanted.queue_offset, given.next_begin_offset))
        for record in records:
            assert (record.topic, record.queue_id) == (wanted.topic, wanted.queue_id)
            assert record.body_crc == body_crc(record.body)
            body = zlib.decompress(record.body) if record.is_compressed else record.body
            assert "消息" in body.decode() or body == "Körper".encode()
        found += len(records)
    assert found
