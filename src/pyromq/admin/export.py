"""Export: settings, metadata and metrics of a cluster, in the shape of mqadmin's JSON files.

Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from pyromq.admin.cluster import Clusters
from pyromq.admin.configuration import Configurations
from pyromq.admin.errors import AdminError, NotFoundError
from pyromq.admin.session import Area
from pyromq.admin.statistics import TOPIC_PUT_COUNT, Statistic, Statistics
from pyromq.base.atomic_file import write_file
from pyromq.protocol.names import (
    DEAD_LETTER_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_HALF_TOPIC,
    is_system_group,
    retry_topic,
)
from pyromq.protocol.wire.bodies import (
    MASTER_ID,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    TopicList,
)
from pyromq.protocol.wire.bodies_admin import ConsumerConnection
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, RequestCode
from pyromq.protocol.wire.headers_admin import GetConsumerConnectionListRequestHeader
from pyromq.protocol.wire.versions import version_name

#: The settings in an export of settings.
_SETTINGS: Final = (
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
)
#: Groups of RocketMQ's tools beside those of `is_system_group`.
_TOOL_GROUPS: Final = frozenset(
    {
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
    }
)
_RATES: Final = ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
_COUNTS: Final = (
    "normalOneDayInNum",
    "normalOneDayOutNum",
    "transOneDayInNum",
    "scheduleOneDayInNum",
)


@dataclass(frozen=True, slots=True)
class Export:
    """The content of an export and the name of its file."""

    file_name: str
    content: Mapping[str, Any]

    def write(self, folder: Path | str) -> Path:
        """Write the file below `folder`, which is created; return its path."""
        path = Path(folder) / self.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
        write_file(path, orjson.dumps(self.content, option=options))
        return path


class Exports(Area):
    """Exports of a cluster."""

    async def configs(self, cluster: str) -> Export:
        """Return the important settings of a cluster's masters, and the size of the cluster."""
        brokers = await self._session.brokers_of_cluster(cluster)
        masters = [ids[MASTER_ID] for ids in brokers.values() if MASTER_ID in ids]
        found = await self._session.on_each(
            "reading settings", masters, Configurations(self._session).broker
        )
        return Export(
            "configs.json",
            {
                "brokerConfigs": {
                    each.settings.get("brokerName", each.address): {
                        key: each.settings[key] for key in _SETTINGS if key in each.settings
                    }
                    for each in found.values()
                },
                "clusterScale": {
                    "namesrvSize": len(self._session.name_servers),
                    "masterBrokerSize": len(masters),
                    "slaveBrokerSize": sum(map(len, brokers.values())) - len(masters),
                },
            },
        )

    async def topics(self, broker: str, *, special: bool = False) -> Export:
        """Return the topics of the broker at an address, without those of the system.

        `special` includes retry and dead-letter topics.
        """
        wrapper = await self._topics(broker, special)
        return Export("topic.json", wrapper.to_value())

    async def groups(self, broker: str) -> Export:
        """Return the groups of the broker at an address, without those of the system."""
        wrapper = await self._groups(broker)
        return Export("subscriptionGroup.json", wrapper.to_value())

    async def metadata(
        self,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        topics: bool = True,
        groups: bool = True,
        special: bool = False,
    ) -> Export:
        """Return the topics and groups of a broker or of a cluster's masters together.

        The queues of a topic are summed up over the brokers, and so are a group's retry queues.
        """
        addresses = await self._session.targets(broker, cluster)
        content: dict[str, Any] = {"exportTime": int(time.time() * 1000)}
        if topics:
            tables = await self._session.on_each(
                "reading topics", addresses, lambda address: self._topics(address, special)
            )
            topic_table: dict[str, dict[str, Any]] = {}
            for wrapper in tables.values():
                for name, config in wrapper.topic_config_table.items():
                    _add(topic_table, name, config.to_value(), "writeQueueNums", "readQueueNums")
            content["topicConfigTable"] = topic_table
        if groups:
            wrappers = await self._session.on_each("reading groups", addresses, self._groups)
            group_table: dict[str, dict[str, Any]] = {}
            for group_wrapper in wrappers.values():
                for name, group in group_wrapper.subscription_group_table.items():
                    _add(group_table, name, group.to_value(), "retryQueueNums")
            content["subscriptionGroupTable"] = group_table
        kinds = {(True, False): "topic", (False, True): "subscriptionGroup"}
        return Export(f"{kinds.get((topics, groups), 'metadata')}.json", content)

    async def metrics(self, cluster: str) -> Export:
        """Return rates, counts, disk use and client versions of a cluster's masters."""
        brokers = await self._session.brokers_of_cluster(cluster)
        masters = {name: ids[MASTER_ID] for name, ids in brokers.items() if MASTER_ID in ids}
        if not masters:
            raise NotFoundError(f"cluster {cluster!r} has no master at present")
        reports = dict(
            zip(
                masters,
                await asyncio.gather(*map(self._report, masters.values())),
                strict=True,
            )
        )
        quotas = [report["runtimeQuota"] for report in reports.values()]
        return Export(
            "metrics.json",
            {
                "evaluateReport": reports,
                "totalData": {
                    "totalTps": {
                        f"total{key[0].upper()}{key[1:]}": sum(
                            quota["tps"][key] for quota in quotas
                        )
                        for key in _RATES
                    },
                    "totalOneDayNum": {
                        key: sum(quota["oneDayNum"][key] for quota in quotas) for key in _COUNTS
                    },
                },
            },
        )

    # Helpers, in call order

    async def _topics(self, address: str, special: bool) -> TopicConfigSerializeWrapper:
        wrapper, system = await asyncio.gather(
            self._session.fetch(
                TopicConfigSerializeWrapper, address, RequestCode.GET_ALL_TOPIC_CONFIG
            ),
            self._session.fetch(TopicList, address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
        )
        prefixes = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
        table = {
            name: config
            for name, config in wrapper.topic_config_table.items()
            if name not in system.topic_list and (special or not name.startswith(prefixes))
        }
        return TopicConfigSerializeWrapper(table, wrapper.data_version)

    async def _groups(self, address: str) -> SubscriptionGroupWrapper:
        wrapper = await self._session.fetch(
            SubscriptionGroupWrapper, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        )
        table = {
            name: config
            for name, config in wrapper.subscription_group_table.items()
            if not is_system_group(name) and name not in _TOOL_GROUPS
        }
        return SubscriptionGroupWrapper(table, wrapper.data_version)

    async def _report(self, address: str) -> dict[str, Any]:
        """Return the report about one master."""
        runtime, settings, topics, groups, halves, delayed = await asyncio.gather(
            Clusters(self._session).runtime(address),
            Configurations(self._session).broker(address),
            self._topics(address, False),
            self._groups(address),
            self._statistic(address, TRANSACTION_HALF_TOPIC),
            self._statistic(address, SCHEDULE_TOPIC),
        )
        values, number = runtime.values, runtime.number
        environment = {
            "cpuNum": settings.settings.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": values.get("totalMemKBytes"),
        }
        quota = {
            "diskRatio": _present(
                {key: values.get(key) for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")}
            ),
            "tps": dict(
                zip(
                    _RATES,
                    (
                        runtime.put_tps,
                        runtime.get_tps,
                        halves.minute.tps if halves is not None else 0.0,
                        delayed.minute.tps if delayed is not None else 0.0,
                    ),
                    strict=True,
                )
            ),
            "oneDayNum": dict(
                zip(
                    _COUNTS,
                    (
                        number("msgPutTotalTodayMorning") - number("msgPutTotalYesterdayMorning"),
                        number("msgGetTotalTodayMorning") - number("msgGetTotalYesterdayMorning"),
                        halves.last_day if halves is not None else 0,
                        delayed.last_day if delayed is not None else 0,
                    ),
                    strict=True,
                )
            ),
            "messageAverageSize": values.get("putMessageAverageSize"),
            "topicSize": len(topics.topic_config_table),
            "groupSize": len(groups.subscription_group_table),
        }
        clients = await asyncio.gather(*map(self._clients, groups.subscription_group_table))
        return {
            "runtimeEnv": _present(environment),
            "runtimeQuota": _present(quota),
            "runtimeVersion": {
                "rocketmqVersion": version_name(PROTOCOL_VERSION),
                "clientInfo": sorted({each for found in clients for each in found}),
            },
        }

    async def _statistic(self, address: str, topic: str) -> Statistic | None:
        try:
            return await Statistics(self._session).view(address, TOPIC_PUT_COUNT, topic)
        except NotFoundError:
            return None  # no such message yet

    async def _clients(self, group: str) -> set[str]:
        """Return languages and versions of a group's members; none if it is offline."""
        try:
            brokers = await self._session.masters_of_topic(retry_topic(group))
        except AdminError:
            return set()
        found = await asyncio.gather(
            *(
                self._session.fetch(
                    ConsumerConnection,
                    address,
                    RequestCode.GET_CONSUMER_CONNECTION_LIST,
                    GetConsumerConnectionListRequestHeader(group),
                )
                for address in brokers.values()
            ),
            return_exceptions=True,
        )
        return {
            f"{each.language.name}%{version_name(each.version)}"
            for members in found
            if isinstance(members, ConsumerConnection)
            for each in members.connection_set
        }


def _add(table: dict[str, dict[str, Any]], name: str, value: dict[str, Any], *summed: str) -> None:
    """Enter a value under its name; figures of an earlier one are added to it."""
    if name in table:
        value |= {key: table[name][key] + value[key] for key in summed}
    table[name] = value


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
