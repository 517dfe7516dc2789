from __future__ import annotations

import pytest

import pyromq.admin
from pyromq.admin import Admin
from pyromq.admin.session import Area
from pyromq.client import OptionError
from pyromq.protocol.wire.acl import ACCESS_KEY, SIGNATURE
from pyromq.protocol.wire.codes import RequestCode
from pyromq.testing import Cluster


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"namesrv": "nonsense"}, "host:port"),
        ({"namesrv": ""}, "names no address"),
        ({"namesrv": "a:1", "timeout": 0}, "greater than 0"),
        ({"namesrv": "a:1", "access_key": "me"}, "together"),
        ({"namesrv": "a:1", "namespce": "x"}, "unknown option namespce"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Admin(**arguments)  # type: ignore[arg-type]


def test_every_area_is_documented_and_public() -> None:
    admin = Admin("127.0.0.1:1")
    areas = {name: value for name, value in vars(admin).items() if isinstance(value, Area)}
    assert {"topics", "cluster", "configuration", "statistics", "access", "export"} <= set(areas)
    assert {"raft", "maintenance"} <= set(areas)
    for area in areas.values():
        assert type(area).__name__ in pyromq.admin.__all__
        assert type(area).__doc__


async def test_requests_are_signed(rocketmq: Cluster) -> None:
    async with Admin(rocketmq.namesrv, access_key="me", secret_key="secret") as admin:
        signed = []
        remoting = admin.session.client.remoting
        request = remoting.request

        async def spy(address, command, timeout):  # type: ignore[no-untyped-def] # noqa: ASYNC109
            answer = await request(address, command, timeout)
            signed.append(command.ext_fields)
            return answer

        remoting.request = spy  # type: ignore[method-assign, assignment]
        await admin.session.ask(rocketmq.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert signed[0][ACCESS_KEY] == "me"
    assert signed[0][SIGNATURE]
