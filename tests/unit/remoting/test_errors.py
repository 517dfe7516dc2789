from __future__ import annotations

import pytest

from pyromq.remoting.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)


@pytest.mark.parametrize("kind", [RemotingClosedError, RemotingConnectError, RemotingTimeoutError])
def test_each_error_is_a_remoting_error_that_names_the_other_end(kind: type[RemotingError]) -> None:
    error = kind("127.0.0.1:1", "what happened")
    assert isinstance(error, RemotingError)
    assert (error.address, str(error)) == ("127.0.0.1:1", "what happened")
