from __future__ import annotations

import orjson

from pyromq.client.consumer.pull_request import PullNumbers, pull_command, pull_template
from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import PullMessageRequestHeader

AWKWARD = Subscription.tags('a || 100%d"\\')
NUMBERS = PullNumbers(5, 9, 7, 3, 1500)


def test_template_and_command_carry_the_same_fields() -> None:
    command = pull_command("g%s", "ns%t", 2, AWKWARD, NUMBERS, version=7)
    header = orjson.loads(pull_template("g%s", "ns%t", 2, AWKWARD, 7) % (*NUMBERS, 11))
    assert header["extFields"] == command.ext_fields
    assert (header["code"], header["opaque"]) == (RequestCode.PULL_MESSAGE, 11)
    assert header["language"] == command.language.name
    assert header["version"] == command.version


def test_numbers_default_to_a_plain_pull() -> None:
    command = pull_command("g", "t", 0, Subscription(), PullNumbers(5, 9))
    header = PullMessageRequestHeader.decode(command.ext_fields)
    assert (header.queue_offset, header.max_msg_nums) == (5, 9)
    assert header.sys_flag == PULL_SUBSCRIPTION
    assert (header.commit_offset, header.suspend_timeout_millis) == (0, 0)
    assert "maxMsgBytes" not in command.ext_fields


def test_a_limit_of_bytes_is_sent_only_if_given() -> None:
    command = pull_command("g", "t", 0, Subscription(), PullNumbers(5, 9), max_bytes=4096)
    assert PullMessageRequestHeader.decode(command.ext_fields).max_msg_bytes == 4096
