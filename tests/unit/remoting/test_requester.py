from __future__ import annotations

import inspect

from pyromq.remoting.client import RemotingClient
from pyromq.remoting.requester import Requester


def test_the_real_client_is_a_requester() -> None:
    requester: Requester = RemotingClient()  # checked by mypy
    ours = inspect.signature(Requester.request).parameters
    theirs = inspect.signature(type(requester).request).parameters
    assert list(ours) == list(theirs)[: len(ours)]
