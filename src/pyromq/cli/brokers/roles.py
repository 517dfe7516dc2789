"""Who is the master among the brokers of one name: `pyromq standalone --replicas`.

A promotion saves the role in the file `config/broker.properties` of the promoted broker's store,
with brokerId=0. Nobody else writes brokerId there, so a file with brokerId=0 belongs to a broker
that was promoted. It stays the master over restarts, and the others are its replicas, including the
broker that was the master at first.

Invariants
1. At most one broker of a name starts as a master. If the files of two brokers claim it, the start
   is refused: only the user knows which messages count.
2. A master that returns as a replica has brokerId in its file again, so it claims nothing.

Used by `cli.standalone` before anything starts, and by `cli.brokers.failover` while the broker of
the file is down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from pyromq.base.atomic_file import write_file
from pyromq.broker.config import MASTER_ID
from pyromq.protocol.java.properties import PropertiesError, parse_properties, update_properties
from pyromq.store.config import BrokerRole

_MASTERS = (BrokerRole.ASYNC_MASTER.name, BrokerRole.SYNC_MASTER.name)


class Role(NamedTuple):
    """The role of a broker, as settings."""

    role: str
    broker_id: int

    @property
    def is_replica(self) -> bool:
        """Return whether it is a replica's."""
        return self.broker_id != MASTER_ID

    def properties(self) -> dict[str, str]:
        """Return the settings of the role."""
        return {"brokerRole": self.role, "brokerId": str(self.broker_id)}


def replica(broker_id: int) -> Role:
    """Return the role of a replica."""
    return Role(BrokerRole.SLAVE.name, broker_id)


def assign(files: Sequence[Path], master_role: str) -> list[Role]:
    """Return the role of each broker of a name, whose role files these are.

    The first one is the master with `master_role`, unless another one was promoted. Raises
    click.ClickException if two were, or a file cannot be read.
    """
    saved = [saved_role(file) for file in files]
    promoted = [index for index, role in enumerate(saved) if role and not role.is_replica]
    if len(promoted) > 1:
        claims = " and ".join(str(files[index]) for index in promoted)
        raise click.ClickException(
            f"two brokers of one name would be masters: {claims} both have brokerId={MASTER_ID}; "
            "in the file of the one whose last messages you can do without, set brokerRole=SLAVE "
            "and brokerId=1"
        )
    master = promoted[0] if promoted else 0
    # The first broker takes the id of the one that replaced it.
    roles = [replica(index or master) for index in range(len(files))]
    roles[master] = (saved[master] if promoted else None) or Role(master_role, MASTER_ID)
    return roles


def saved_role(file: Path) -> Role | None:
    """Return the role that a promotion, or `save_role`, has left in a file; None if there is none.

    Raises click.ClickException if the file cannot be read.
    """
    table = _read(file)
    role, broker_id = table.get("brokerRole", "").strip(), table.get("brokerId", "").strip()
    if role in _MASTERS and broker_id == str(MASTER_ID):
        return Role(role, MASTER_ID)
    if role == BrokerRole.SLAVE.name and broker_id.isdecimal() and int(broker_id) > MASTER_ID:
        return replica(int(broker_id))
    return None


def save_role(file: Path, role: Role) -> None:
    """Save the role of a broker that does not run. Raises OSError or PropertiesError."""
    before = file.read_bytes() if file.exists() else b""
    write_file(file, update_properties(before, role.properties()))


def _read(file: Path) -> Mapping[str, str]:
    try:
        return parse_properties(file.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror}") from error
    except PropertiesError as error:
        raise click.ClickException(f"{file}: {error}") from error
