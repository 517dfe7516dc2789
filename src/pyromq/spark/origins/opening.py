"""Where a job's messages come from, as something that travels: each task opens its own origin.

source = BrokerSource(ConnectionSettings(("localhost:9876",)))
with closing(source.open()) as origin: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pyromq.spark.origins.broker import ConnectionSettings
    from pyromq.spark.origins.origin import Origin


class BrokerSource(NamedTuple):
    """The brokers of a cluster."""

    settings: ConnectionSettings

    def open(self) -> Origin:
        """An origin that the caller closes."""
        from pyromq.spark.origins.broker import BrokerOrigin

        return BrokerOrigin(self.settings)


class StoreSource(NamedTuple):
    """The files of a store, at the same path for every task."""

    store_path: str
    broker_name: str = ""
    commit_log_paths: tuple[str, ...] = ()

    def open(self) -> Origin:
        """An origin that the caller closes."""
        from pyromq.spark.origins.store import StoreOrigin

        return StoreOrigin(
            self.store_path, self.broker_name, commit_log_paths=self.commit_log_paths
        )


Source: TypeAlias = BrokerSource | StoreSource
