from __future__ import annotations

import pytest

from pyromq.broker.role import Role
from pyromq.store.config import BrokerRole


def test_a_change_counts_before_the_listeners_are_called() -> None:
    role = Role()
    seen: list[tuple[BrokerRole, int, bool]] = []
    role.listeners.append(lambda: seen.append((role.current, role.broker_id, role.is_replica)))

    role.change(BrokerRole.SLAVE, 2)
    role.change(BrokerRole.SLAVE, 2)
    role.change(BrokerRole.SYNC_MASTER, 0)

    assert seen == [(BrokerRole.SLAVE, 2, True), (BrokerRole.SYNC_MASTER, 0, False)]
    assert repr(role) == "Role(SYNC_MASTER, 0)"


@pytest.mark.parametrize(
    ("role", "broker_id"),
    [(BrokerRole.SLAVE, 0), (BrokerRole.SLAVE, -1), (BrokerRole.ASYNC_MASTER, 1)],
)
def test_only_a_master_has_the_id_0(role: BrokerRole, broker_id: int) -> None:
    current = Role(BrokerRole.SYNC_MASTER)
    with pytest.raises(ValueError, match=f"a {role.name} cannot have the broker id {broker_id}"):
        current.change(role, broker_id)
    assert current.current is BrokerRole.SYNC_MASTER
