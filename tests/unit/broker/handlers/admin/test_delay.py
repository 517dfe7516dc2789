from __future__ import annotations

from pathlib import Path
from unittest.mock import create_autospec

from pyromq.broker.handlers.admin.delay import DelayAdminHandlers
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.connection import Connection


def test_the_table_is_told_as_java_tells_it(tmp_path: Path) -> None:
    table = DelayOffsetTable(tmp_path, tmp_path / "abort")
    handlers = DelayAdminHandlers(table)
    connection = create_autospec(Connection, instance=True)
    request = RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET, opaque=3)

    answer = handlers.all_delay_offsets(connection, request)
    assert (answer.code, answer.opaque, answer.body) == (
        ResponseCode.SUCCESS,
        3,
        b'{"offsetTable":{}}',
    )

    table.move({1: 5, 2: 7}, 0)
    assert handlers.all_delay_offsets(connection, request).body == b'{"offsetTable":{1:5,2:7}}'
