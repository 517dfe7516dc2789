from __future__ import annotations

import pytest

from pyromq.admin import Admin, SyncAdmin
from pyromq.admin.errors import UnknownTopicError
from pyromq.admin.session import Area
from pyromq.admin.topics import TopicConfiguration
from pyromq.client import ClientStateError
from pyromq.testing import Cluster


def test_calls_wait_for_their_results(rocketmq: Cluster) -> None:
    with Admin.sync(rocketmq.namesrv) as admin:
        assert isinstance(admin, SyncAdmin)
        (broker,) = rocketmq.brokers
        change = admin.topics.update(TopicConfiguration("orders", 1, 1), broker=broker.address)
        assert change.brokers == (broker.address,)
        assert "orders" in admin.topics.names()
        with pytest.raises(UnknownTopicError):
            admin.topics.route("nothing")
    with pytest.raises(ClientStateError):
        admin.topics.names()


def test_it_has_every_area() -> None:
    areas = {name for name, value in vars(Admin("127.0.0.1:1")).items() if isinstance(value, Area)}
    assert areas <= set(vars(Admin.sync("127.0.0.1:1")))
