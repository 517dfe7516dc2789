from __future__ import annotations

from pyromq.client.errors import ClientError
from pyromq.protocol.errors import RocketMQError
from pyromq.remoting.errors import RemotingError


def test_one_class_catches_all_errors() -> None:
    assert issubclass(ClientError, RocketMQError)
    assert issubclass(RemotingError, RocketMQError)
