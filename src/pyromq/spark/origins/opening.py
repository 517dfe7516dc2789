"""Open an origin: the one place that turns a description of it into sockets or mapped files.

    source = BrokerSource(ConnectionSettings(("localhost:9876",)))
    with closing(source.open()) as origin: ...

A source is plain values and travels by pickle: with the options of a read, or with the work of a
job. The driver opens it for planning, and each task opens an origin of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyromq.spark.origins.settings import ConnectionSettings

if TYPE_CHECKING:
    from pyromq.client.consumer.subscription import Subscription
    from pyromq.spark.origins.broker import BrokerOrigin
    from pyromq.spark.origins.store import StoreOrigin


class BrokerSource(NamedTuple):
    """The brokers of a cluster."""

    settings: ConnectionSettings

    def open(self, subscription: Subscription | None = None) -> BrokerOrigin:
        """Return an origin that the caller closes. No server is contacted yet.

        Give a subscription only for reading messages. Brokers find offsets by inspecting
        messages, and none of those may be filtered out.
        """
        from pyromq.spark.origins.broker import BrokerOrigin

        return BrokerOrigin(self.settings, subscription=subscription)


class StoreSource(NamedTuple):
    """A store directory, at the same path for every task."""

    store_path: str
    #: The broker name to report; the store does not record it. Default: the directory's name.
    broker_name: str = ""
    #: The directories of the log, if it is not in `commitlog` below `store_path`.
    commit_log_paths: tuple[str, ...] = ()

    def open(self, subscription: Subscription | None = None) -> StoreOrigin:
        """Return an origin that the caller closes. Raises OriginError if it is not a store.

        Files are not filtered: the reader applies the subscription's tags itself.
        """
        from pyromq.spark.origins.store import StoreOrigin

        del subscription
        return StoreOrigin(
            self.store_path, self.broker_name, commit_log_paths=self.commit_log_paths
        )


Source: TypeAlias = BrokerSource | StoreSource
