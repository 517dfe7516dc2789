from __future__ import annotations

import pytest

from pyromq.protocol.wire.header_codec import HeaderError
from pyromq.protocol.wire.leadership import TransferLeadershipRequestHeader


def test_header() -> None:
    header = TransferLeadershipRequestHeader("n1")
    assert header.encode() == {"nodeId": "n1"}
    assert TransferLeadershipRequestHeader.decode({"nodeId": "n1"}) == header


def test_the_node_is_required() -> None:
    with pytest.raises(HeaderError, match="nodeId"):
        TransferLeadershipRequestHeader.decode({})
