"""What the client cases share: which clients a case runs with, its names, its clients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.interop.client_driver import ClientDriver, Line
from tests.interop.client_programs import CLIENTS
from tests.interop.cluster import Cluster


def with_clients(*abilities: str) -> pytest.MarkDecorator:
    """Run a case with each client that has all these abilities."""
    names = [
        pytest.param(name, marks=pytest.mark.soak if client.in_soak_only else ())
        for name, client in CLIENTS.items()
        if client.abilities.issuperset(abilities)
    ]
    return pytest.mark.parametrize("driver", names, indirect=True, scope="module")


class Case:
    """One test's names and its clients, which are closed behind it."""

    def __init__(self, cluster: Cluster, driver: ClientDriver, name: str) -> None:
        self.cluster = cluster
        self.driver = driver
        self.namesrv = cluster.namesrv_address
        self.topic = name
        self.group = f"group_{name}"

    def create_topics(self, queues: int = 4) -> None:
        """The topic, and that of the group's retries, which some clients look for only at once."""
        self.cluster.create_topic(self.topic, queues)
        self.cluster.create_topic(f"%RETRY%{self.group}", 1)

    def producer(self, name: str = "producer", **options: object) -> None:
        self.driver.producer(name, self.namesrv, f"{name}_{self.topic}", **options)

    def consumer(self, name: str = "consumer", **options: object) -> None:
        self.driver.consumer(name, self.namesrv, self.group, self.topic, **options)

    def lite(self, name: str = "lite", **options: object) -> None:
        """A lite-pull consumer, in a group of its own kind."""
        self.driver.lite(name, self.namesrv, f"lite_{self.group}", self.topic, **options)

    def send(
        self,
        messages: Sequence[Line],
        mode: str = "sync",
        name: str = "producer",
        **options: object,
    ) -> list[Line]:
        return self.driver.send(name, self.topic, messages, mode, **options)
