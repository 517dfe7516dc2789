"""Headers of sends in the kernel: which are plain, and which are for the Python code."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import Encoding
from tests.support.requests import raw_frame, send_fields
from tests.unit.protocol.kernel.kernel_sends import CLUSTER, Broker, send

FIELDS = orjson.dumps(send_fields(RequestCode.SEND_MESSAGE_V2)).decode()


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.add()
    return broker


@pytest.mark.parametrize(
    "text",
    [
        '{"code":310,"extFields":%s,"opaque":1}',
        ' {\n"opaque" : 1 ,\t"extFields":%s,"code":310,"flag":0,"remark":null,"version":7} ',
        '{"extFields":%s,"code":310,"opaque":-1,"language":"GO","remark":"plain"}',
    ],
)
def test_plain_json(broker: Broker, text: str) -> None:
    assert broker.serves(raw_frame((text % FIELDS).encode(), b"body"))


@pytest.mark.parametrize(
    "text",
    [
        '{"code":310,"extFields":%s}',  # no opaque
        '{"code":310,"extFields":%s,"opaque":1',
        '{"code":310,"extFields":%s,"opaque":1}x',
        '{"code":310,"extFields":%s,"opaque":1,}',
        '{"code":310,"extFields":%s,"opaque":01}',
        '{"code":310,"extFields":%s,"opaque":1.0}',
        '{"code":310,"extFields":%s,"opaque":2147483648}',
        '{"code":310,"extFields":%s,"opaque":1,"opaque":2}',
        '{"code":310,"extFields":%s,"opaque":1,"flag":"1"}',
        '{"code":310,"extFields":%s,"opaque":1,"flag":1}',  # a response
        '{"code":310,"extFields":%s,"opaque":1,"extFields":{}}',
        '{"code":310,"extFields":%s,"opaque":1,"remark":"\\u0061"}',
        '{"code":310,"extFields":%s,"opaque":1,"remark":"é"}',
        '{"code":310,"extFields":%s,"opaque":1,"x":[1]}',
        '{"c\\u006fde":310,"extFields":%s,"opaque":1}',
        '[{"code":310,"extFields":%s,"opaque":1}]',
        '{"code":999,"extFields":%s,"opaque":1}',
    ],
)
def test_odd_json_is_for_the_python_code(broker: Broker, text: str) -> None:
    assert not broker.serves(raw_frame((text % FIELDS).encode(), b"body"))


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.ROCKETMQ])
@pytest.mark.parametrize(
    "properties", ["", "A\x01b", "K\x01ä€\U0001f680", 'q\x01"\\/\b\f\n\r\t\x7f', "K\x01v\x02"]
)
def test_properties_of_any_text(broker: Broker, properties: str, encoding: Encoding) -> None:
    _, records, _, _ = broker.run(send(properties=properties, encoding=encoding))

    joint = b"\x02" if properties and properties[-1] != "\x02" else b""
    assert decode_records(records)[0].raw_properties == properties.encode() + joint + CLUSTER


@pytest.mark.parametrize("escape", ["\\u00e4", "\\ud83d\\ude80", "\\n", "\\/", '\\"'])
def test_escapes(broker: Broker, escape: str) -> None:
    fields = FIELDS.replace('"i":""', f'"i":"K\\u0001{escape}"')
    frame = raw_frame(b'{"code":310,"extFields":%s,"opaque":1}' % fields.encode(), b"body")

    value = decode_records(broker.run(frame)[1])[0].properties["K"]

    assert value == orjson.loads(f'"{escape}"')


@pytest.mark.parametrize("escape", ["\\ud800", "\\ude80", "\\ud800\\u0041", "\\x", "\\u12", "\x01"])
def test_invalid_escapes_are_for_the_python_code(broker: Broker, escape: str) -> None:
    fields = FIELDS.replace('"i":""', f'"i":"K\\u0001{escape}"')
    frame = raw_frame(b'{"code":310,"extFields":%s,"opaque":1}' % fields.encode(), b"body")

    assert not broker.serves(frame)


@pytest.mark.parametrize(
    "values",
    [
        {"queueId": "01"},
        {"queueId": "-1"},
        {"queueId": ""},
        {"flag": "2147483648"},
        {"sysFlag": None},
        {"properties": None},
        {"bornTimestamp": "9" * 19},
        {"reconsumeTimes": "-1"},
        {"batch": "yes"},
    ],
)
def test_fields_that_are_not_plain(broker: Broker, values: dict[str, Any]) -> None:
    assert not broker.serves(send(**values))


def test_long_names(broker: Broker) -> None:
    assert broker.serves(send(RequestCode.SEND_MESSAGE))


def test_a_binary_header_that_is_not_utf8(broker: Broker) -> None:
    frame = send(properties="K\x01abc", encoding=Encoding.ROCKETMQ).encode()

    assert broker.serves(frame)
    assert not broker.serves(frame.replace(b"abc", b"a\xffc"))
