"""The example of docs/hooks.md, run against a broker with its sockets."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from pyromq.protocol.message.record import decode_record
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.requests import send_request

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


def example() -> SimpleNamespace:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)
    return SimpleNamespace(**names)


async def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = example()
    config = local_broker()
    broker = page.build(config, small_store(tmp_path))
    await broker.start()
    client = RemotingClient()
    try:
        unsigned = await client.request(broker.address, send_request(topic="orders"))
        assert (unsigned.code, unsigned.remark) == (
            ResponseCode.NO_PERMISSION,
            "orders must be signed",
        )
        signed = await client.request(
            broker.address, send_request(topic="orders", properties="signature\x01x\x02")
        )
        assert signed.code == ResponseCode.SUCCESS
        record = decode_record(broker.store.read_record(0))
        assert record.properties["via"].startswith("127.0.0.1:")
        deletion = RemotingCommand(
            RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "orders"}
        )
        refused = await client.request(broker.address, deletion)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert page.signed_orders.stored == {"orders": 1}
    finally:
        await client.close()
        await broker.stop()
