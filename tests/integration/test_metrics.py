"""Metrics of real servers: read by Prometheus, used by the dashboard and by the alert rules."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import runpy
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.metrics import service
from pyromq.metrics.family import Family, Source
from pyromq.metrics.settings import ExporterType
from pyromq.nameserver import metrics as nameserver
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import BrokerRole
from tests.support.access import write_accounts
from tests.support.apache_rocketmq import free_port
from tests.support.brokers import local_broker, small_store
from tests.support.certificates import Certificates
from tests.support.metrics import OPEN_METRICS, Scrape, fetched, scraped
from tests.support.patience import DEADLINE, until
from tests.support.prometheus import checked, prometheus_or_skip, running_prometheus
from tests.support.raft_brokers import RaftBrokers
from tests.support.requests import pull_request, send_request

DOCS = Path(__file__).parents[2] / "docs"
RULES = DOCS / "monitoring" / "alert-rules.yml"
DASHBOARD = DOCS / "monitoring" / "grafana-dashboard.json"
FROZEN = Path(__file__).with_name("metric_names.txt")

ON: dict[str, Any] = {"metrics_exporter_type": ExporterType.PROM, "metrics_prom_exporter_port": 0}
_NAME = re.compile(r"\b(?:rocketmq|pyromq|process|python)_[a-z0-9_]+\b")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
#: Only with a transient store pool.
_RARE = {"pyromq_transient_store_free_buffers"}


@contextlib.asynccontextmanager
async def running(config: Any, root: Path, **settings: Any) -> AsyncIterator[Broker]:
    broker = Broker(config, small_store(root, **settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@contextlib.asynccontextmanager
async def name_server(root: Path, **settings: Any) -> AsyncIterator[NameServer]:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(root / "kv.json"),
        **ON,
        **settings,
    )
    server = NameServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()


def port_of(server: Broker | NameServer) -> int:
    assert server.metrics_port is not None
    return server.metrics_port


async def ask(client: RemotingClient, broker: Broker, request: RemotingCommand) -> RemotingCommand:
    answer = await client.request(broker.address, request, DEADLINE)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer


def heartbeat() -> RemotingCommand:
    data = HeartbeatData(
        "client",
        [ProducerData("producers")],
        [
            ConsumerData(
                "g",
                ConsumeType.CONSUME_PASSIVELY,
                MessageModel.CLUSTERING,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                [SubscriptionData("T", "*")],
            )
        ],
    )
    return RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())


async def traffic(client: RemotingClient, broker: Broker, group: str = "g") -> None:
    """Send, pull, commit, delay, give up and end transactions, once each."""
    await ask(client, broker, heartbeat())
    first = await ask(client, broker, send_request(queueId="0"))
    for _ in range(2):
        await ask(client, broker, send_request(queueId="0"))
        await ask(client, broker, pull_request(queueId="0", consumerGroup=group))
    retry = {"consumerGroup": group, "topic": f"%RETRY%{group}", "queueId": "0"}
    update = RemotingCommand(
        RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields={**retry, "commitOffset": "0"}
    )
    await ask(client, broker, update)
    commit = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "1"}
    await ask(
        client, broker, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=commit)
    )
    await ask(client, broker, send_request(queueId="0", properties="DELAY\x0118"))
    dead = {"offset": "0", "group": group, "delayLevel": "-1", "originTopic": "T"}
    await ask(client, broker, RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=dead))
    assert first.ext_fields["queueOffset"] == "0"
    for outcome in ("8", "12"):
        half = await ask(
            client,
            broker,
            send_request(
                queueId="0", sysFlag="4", properties="TRAN_MSG\x01true\x02PGROUP\x01producers"
            ),
        )
        ended = {
            "producerGroup": "producers",
            "tranStateTableOffset": half.ext_fields["queueOffset"],
            "commitLogOffset": str(int(half.ext_fields["msgId"][16:], 16)),
            "commitOrRollback": outcome,
            "fromTransactionCheck": "false",
            "msgId": "id",
        }
        request = RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=ended)
        assert (await client.request(broker.address, request, DEADLINE)).code == 0


@contextlib.asynccontextmanager
async def everything(root: Path, client: RemotingClient) -> AsyncIterator[list[Scrape]]:
    """Run servers of every kind, with traffic; yield a scrape of each."""
    certificates = Certificates(root / "certificates")
    write_accounts(root)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        names = await enter(name_server(root, **certificates.values("permissive")))
        address = f"127.0.0.1:{names.port}"
        master_config = local_broker(
            broker_name="b",
            namesrv_addr=address,
            metrics_exporter_names_enable=True,
            metrics_queue_topics="T",
            **ON,
        )
        master = await enter(running(master_config, root / "m"))
        replica_config = local_broker(broker_name="b", broker_id=1, namesrv_addr=address, **ON)
        replica = await enter(
            running(
                replica_config,
                root / "r",
                broker_role=BrokerRole.SLAVE,
                ha_master_address=f"127.0.0.1:{master.port + 1}",
            )
        )
        guarded_config = local_broker(
            acl_enable=True,
            rocketmq_home=str(root),
            metrics_otel_cardinality_limit=3,  # drops series, which the next scrape shows
            **ON,
        )
        guarded = await enter(running(guarded_config, root / "a"))
        group = RaftBrokers(
            root / "raft", 2, metricsExporterType="PROM", metricsPromExporterPort="0"
        )
        (root / "raft").mkdir()
        stack.push_async_callback(group.stop)
        await group.start()
        leader = group.brokers[await group.leader()]
        await traffic(client, master)
        request = send_request(queueId="0")
        refused = await client.request(guarded.address, request, DEADLINE)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        await scraped(port_of(guarded))
        replication = master.replication
        assert replication is not None
        await until(lambda: bool(replication.status()))
        servers: list[Broker | NameServer] = [names, master, replica, guarded, leader]

        async def all_served() -> bool:
            # A peer of a raft group may not have reported yet.
            return "pyromq_raft_peer_lag_entries" in (await scraped(port_of(leader))).names()

        await until(all_served)
        yield [await scraped(port_of(server)) for server in servers]


def declared() -> dict[str, Family]:
    return {family.name: family for family in (*service.FAMILIES, *nameserver.FAMILIES)}


def used_names(expressions: Iterable[str]) -> set[str]:
    return {name for expression in expressions for name in _NAME.findall(expression)}


def rule_expressions() -> list[str]:
    # Enough YAML for this file: each rule's expression, on its line or indented below it.
    text = RULES.read_text()
    found = re.findall(r"^        expr: (?:\|\n((?:          .*\n)+)|(.*)\n)", text, re.MULTILINE)
    return [block or line for block, line in found]


def panel_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


async def test_documents_and_servers_agree(tmp_path: Path, client: RemotingClient) -> None:
    """What the dashboard and the rules use is served; what is served is documented."""
    async with everything(tmp_path, client) as scrapes:
        samples = set[str]().union(*(scrape.names() for scrape in scrapes))
    assert len(rule_expressions()) == RULES.read_text().count("alert:") >= 20
    assert len(panel_expressions()) >= 40
    assert used_names(rule_expressions()) - samples == set()
    assert used_names(panel_expressions()) - samples == set()
    families = {
        name if name in declared() else _SUFFIX.sub("", name)
        for name in samples
        if name.startswith(("rocketmq_", "pyromq_"))
    }
    assert families - declared().keys() == set()
    assert declared().keys() - families == _RARE
    page = (DOCS / "metrics.md").read_text()
    assert [name for name in declared() if f"`{name}`" not in page] == []


async def test_figures(tmp_path: Path, client: RemotingClient) -> None:
    config = local_broker(broker_name="b", broker_cluster_name="c", metrics_label="rack:7", **ON)
    async with running(config, tmp_path) as broker:
        await traffic(client, broker)
        scrape = await scraped(port_of(broker))
        labels = {"cluster": "c", "node_type": "broker", "node_id": "b", "rack": "7"}
        assert scrape.value("rocketmq_messages_in_total", topic="T", **labels) == 4
        assert scrape.value("rocketmq_consumer_lag_messages", topic="T", consumer_group="g") == 3
        assert scrape.value("rocketmq_send_to_dlq_messages_total", consumer_group="g") == 1
        assert scrape.value("rocketmq_commit_messages_total", topic="T") == 1
        assert scrape.value("rocketmq_rollback_messages_total", topic="T") == 1
        assert scrape.value("pyromq_delay_pending_messages", level="18") == 1
        assert scrape.value("rocketmq_consumer_connections", consumer_group="g") == 1
        assert scrape.value("pyromq_put_seconds_count") > 0
        assert scrape.value("pyromq_end_to_end_seconds_count") > 0
        _, text = await fetched(port_of(broker), headers=[("Accept", OPEN_METRICS)])
        same = Scrape(text, is_open_metrics=True)
        assert same.value("rocketmq_messages_in_total", topic="T", **labels) == 4
        # Deleted names are gone in the next scrape.
        delete = RemotingCommand(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, ext_fields={"groupName": "g"}
        )
        await client.request(broker.address, delete, DEADLINE)
        delete = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
        await ask(client, broker, delete)
        scrape = await scraped(port_of(broker))
        assert [each for each in scrape.samples if each.labels.get("topic") == "T"] == []


async def test_readiness_of_a_broker(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    config = local_broker(namesrv_addr=nobody, register_broker_timeout_mills=1000, **ON)
    async with running(config, tmp_path) as broker:
        status, text = await fetched(port_of(broker), "/readyz")
        assert status == 503
        assert json.loads(text)["reasons"] == [
            f"registered: no NameServer of {nobody} has the broker"
        ]
        assert (await fetched(port_of(broker), "/healthz"))[0] == 200
    with pytest.raises(OSError, match=r"refused|reset|Connect"):
        await fetched(port_of(broker), "/healthz")


async def test_a_taken_port_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        on = {**ON, "metrics_prom_exporter_port": taken.getsockname()[1]}
        broker = Broker(local_broker(**on), small_store(tmp_path))
        with pytest.raises(OSError, match="metricsPromExporterPort"):
            await broker.start()
        await broker.stop()


async def test_names_are_frozen() -> None:
    """Renaming a metric breaks the boards and alerts of users: only add lines to the file."""
    lines = [
        f"{family.name} {family.kind.value} {','.join(family.labels)}".strip()
        for _, family in sorted(declared().items())
    ]
    assert FROZEN.read_text().splitlines() == lines


def test_the_page_is_generated() -> None:
    page = runpy.run_path(str(DOCS / "generate_metrics.py"))
    assert page["PAGE"].read_text() == page["render"]()


async def test_promtool_accepts_the_pages(tmp_path: Path, client: RemotingClient) -> None:
    tools = prometheus_or_skip()
    theirs = {name for name, family in declared().items() if family.source is not Source.OWN}
    config = local_broker(metrics_exporter_names_enable=True, metrics_queue_topics="*", **ON)
    async with name_server(tmp_path) as names, running(config, tmp_path / "b") as broker:
        await traffic(client, broker)
        for server in (names, broker):
            text = (await scraped(port_of(server))).text
            code, lines = await asyncio.to_thread(checked, tools, "check", "metrics", text=text)
            # 3: parsed, with remarks. There are some about names and labels of others.
            assert code in (0, 3), lines
            remarks = [line for line in lines if line.split(" ")[0] not in theirs]
            assert remarks == []
            known = ("milliseconds", "camelCase", '"_count" suffix')
            assert [line for line in lines if not any(text in line for text in known)] == []


def test_promtool_accepts_the_rules() -> None:
    code, lines = checked(prometheus_or_skip(), "check", "rules", str(RULES))
    assert code == 0, lines


async def test_prometheus_scrapes_a_broker_under_load(
    tmp_path: Path, client: RemotingClient
) -> None:
    tools = prometheus_or_skip()
    async with (
        name_server(tmp_path) as names,
        running(
            local_broker(namesrv_addr=f"127.0.0.1:{names.port}", broker_name="b", **ON),
            tmp_path / "b",
        ) as broker,
    ):
        await ask(client, broker, heartbeat())
        await ask(client, broker, send_request(queueId="0"))
        commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
        update = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=commit)
        await ask(client, broker, update)
        sent = 1
        targets = [f"127.0.0.1:{port_of(server)}" for server in (broker, names)]
        starting = running_prometheus(tools, tmp_path, free_port(), targets, RULES)
        prometheus = await asyncio.to_thread(starting.__enter__)
        try:

            async def query(expression: str) -> list[float]:
                found = await asyncio.to_thread(prometheus.query, expression)
                return [value for _, value in found]

            total = 'rocketmq_messages_in_total{topic="T",node_id="b"}'
            rate: list[float] = []
            while not rate or rate[0] <= 0:
                batch = [send_request(queueId="0") for _ in range(100)]
                await asyncio.gather(*(ask(client, broker, each) for each in batch))
                sent += len(batch)
                rate = await query(f"rate({total}[1m])")

            async def is_counted() -> bool:
                return await query(total) == [float(sent)]

            await until(is_counted)
            assert await query('sum(up{job="pyromq"})') == [2.0]
            assert await query("pyromq_nameserver_broker_has_master") == [1.0]
            lag = 'rocketmq_consumer_lag_messages{consumer_group="g",topic="T"}'
            assert await query(lag) == [float(sent - 1)]
            (put,) = await query(
                "histogram_quantile(0.99, sum by (le) (pyromq_put_seconds_bucket))"
            )
            assert put > 0
            (rpc,) = await query(
                'sum(rocketmq_rpc_latency_milliseconds_count{request_code="send_message_v2"})'
            )
            assert rpc > sent / 2  # an estimate

            async def are_rules_sound() -> bool:
                rules = await asyncio.to_thread(prometheus.rules)
                return {rule["health"] for rule in rules} == {"ok"}

            await until(are_rules_sound)
            # Every expression of the dashboard can be evaluated.
            for expression in panel_expressions():
                for variable, value in (
                    ("$__rate_interval", "1m"),
                    ("$cluster", ".*"),
                    ("$system", "false"),
                ):
                    expression = expression.replace(variable, value)
                await query(expression)
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
