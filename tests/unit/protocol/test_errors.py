from __future__ import annotations

from pyromq.client.errors import ClientError
from pyromq.protocol.errors import RocketMQError
from pyromq.remoting.errors import RemotingError


def test_one_name_catches_them_all() -> None:
    assert issubclass(ClientError, RocketMQError)
    assert issubclass(RemotingError, RocketMQError)
