"""Java's client and mqadmin with the brokers of `pyromq standalone --brokers`."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.interop import mqadmin
from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import java_driver
from tests.interop.servers import PyromqServer
from tests.support.patience import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

BROKERS = {"broker-0", "broker-1"}


def test_java_spreads_over_the_brokers_of_one_command() -> None:
    with (
        java_driver() as driver,
        mqadmin.mqadmin() as admin,
        PyromqServer(brokers=2) as server,
    ):
        namesrv = server.namesrv_address
        bodies = [f"message {number}" for number in range(32)]
        driver.producer("producer", namesrv, "producers")
        sent = driver.send("producer", "BySends", [{"body": body} for body in bodies])
        assert Counter(line["broker"] for line in sent) == dict.fromkeys(BROKERS, 16)
        driver.consumer("consumer", namesrv, "consumers", "BySends")
        received = driver.wait_bodies("consumer", bodies)
        assert {line["broker"] for line in received} == BROKERS
        driver.close_all()

        words = ["updateTopic", "-c", "DefaultCluster", "-t", "ByAdmin", "-r", "4", "-w", "4"]
        assert mqadmin.run(admin, namesrv, words).out.count("create topic to ") == 2
        for topic in ("BySends", "ByAdmin"):
            wait_until(partial(has_both, admin, namesrv, ["topicRoute", "-t", topic]))
        assert has_both(admin, namesrv, ["clusterList"])


def has_both(admin: ClientDriver, namesrv: str, words: list[str]) -> bool:
    """Run a command of mqadmin; return whether its output names both brokers."""
    printed = mqadmin.run(admin, namesrv, words).out
    return all(name in printed for name in BROKERS)
