"""Configuration: settings of brokers and NameServers, key-value pairs, order, write permission.

NameServers share no state, so a change goes to all of them. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyromq.admin.errors import NotFoundError, UnknownBrokerError, UnreadableAnswerError
from pyromq.admin.session import Area, read_body, read_header
from pyromq.protocol.java.properties import PropertiesError, format_properties, parse_properties
from pyromq.protocol.wire.bodies import MASTER_ID, KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.header_codec import Header
from pyromq.protocol.wire.headers_admin import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

#: The namespace of order configurations.
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of one server."""

    address: str
    settings: Mapping[str, str]
    #: The address of its master, for a replica.
    master: str | None = None


@dataclass(frozen=True, slots=True)
class WritePermissionChange:
    """A change of a broker's write permission at one NameServer."""

    name_server: str
    #: The number of topics that lost or regained it.
    topics: int


class Configurations(Area):
    """Settings of the servers."""

    # Brokers

    async def broker(self, address: str) -> ServerSettings:
        """Return the settings of the broker at an address."""
        answer = await self._session.ask(address, RequestCode.GET_BROKER_CONFIG)
        return ServerSettings(address, _properties(address, answer))

    async def cluster(self, cluster: str) -> list[ServerSettings]:
        """Return the settings of all masters and replicas of a cluster.

        If some brokers fail, the error's `results` have the settings of the others.
        """
        brokers = await self._session.brokers_of_cluster(cluster)
        masters = {
            address: None if broker_id == MASTER_ID else ids.get(MASTER_ID, "")
            for ids in brokers.values()
            for broker_id, address in ids.items()
        }

        async def read(address: str) -> ServerSettings:
            found = await self.broker(address)
            return ServerSettings(address, found.settings, masters[address])

        return list((await self._session.on_each("reading settings", masters, read)).values())

    async def update_broker(
        self, key: str, value: str, *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Change a setting of a broker, or of a cluster's masters; return their addresses."""
        addresses = await self._session.targets(broker, cluster)
        body = format_properties({key: value}).encode()
        await self._session.on_each(
            f"changing {key}",
            addresses,
            lambda address: self._session.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body),
        )
        return addresses

    # NameServers

    async def name_servers(self) -> list[ServerSettings]:
        """Return the settings of all NameServers."""
        answers = await self._session.ask_every_name_server(
            "reading settings", RequestCode.GET_NAMESRV_CONFIG
        )
        return [
            ServerSettings(address, _properties(address, answer))
            for address, answer in answers.items()
        ]

    async def update_name_servers(self, key: str, value: str) -> list[str]:
        """Change a setting of all NameServers; return their addresses."""
        body = format_properties({key: value}).encode()
        answers = await self._session.ask_every_name_server(
            f"changing {key}", RequestCode.UPDATE_NAMESRV_CONFIG, body=body
        )
        return list(answers)

    async def wipe_write_permission(self, broker_name: str) -> list[WritePermissionChange]:
        """Take write permission from a broker in all routes; producers stop using it."""
        answers = await self._change_permission(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            broker_name,
            WipeWritePermOfBrokerRequestHeader(broker_name),
        )
        return [
            WritePermissionChange(
                address,
                read_header(WipeWritePermOfBrokerResponseHeader, address, answer).wipe_topic_count,
            )
            for address, answer in answers.items()
        ]

    async def add_write_permission(self, broker_name: str) -> list[WritePermissionChange]:
        """Give write permission back to a broker in all routes."""
        answers = await self._change_permission(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            broker_name,
            AddWritePermOfBrokerRequestHeader(broker_name),
        )
        return [
            WritePermissionChange(
                address,
                read_header(AddWritePermOfBrokerResponseHeader, address, answer).add_topic_count,
            )
            for address, answer in answers.items()
        ]

    # Key-value pairs

    async def get_value(self, namespace: str, key: str) -> str:
        """Return the value of a key at a NameServer; raises NotFoundError."""
        address, answer = await self._session.ask_name_server(
            RequestCode.GET_KV_CONFIG,
            GetKVConfigRequestHeader(namespace, key),
            accept=(ResponseCode.QUERY_NOT_FOUND,),
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            raise NotFoundError(f"NameServer {address} has no key {key!r} in {namespace!r}")
        return read_header(GetKVConfigResponseHeader, address, answer).value or ""

    async def values(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace; an unknown one has none."""
        address, answer = await self._session.ask_name_server(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            GetKVListByNamespaceRequestHeader(namespace),
            accept=(ResponseCode.QUERY_NOT_FOUND,),
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        return dict(sorted(read_body(KVTable, address, answer).table.items()))

    async def put_value(self, namespace: str, key: str, value: str) -> list[str]:
        """Set a key at all NameServers; return their addresses."""
        answers = await self._session.ask_every_name_server(
            f"setting key {key!r}",
            RequestCode.PUT_KV_CONFIG,
            PutKVConfigRequestHeader(namespace, key, value),
        )
        return list(answers)

    async def delete_value(self, namespace: str, key: str) -> list[str]:
        """Delete a key from all NameServers; return their addresses. Idempotent."""
        answers = await self._session.ask_every_name_server(
            f"deleting key {key!r}",
            RequestCode.DELETE_KV_CONFIG,
            DeleteKVConfigRequestHeader(namespace, key),
        )
        return list(answers)

    # Order of topics

    async def get_order(self, topic: str) -> str:
        """Return a topic's order configuration, `broker:queues;...`; raises NotFoundError."""
        return await self.get_value(ORDER_NAMESPACE, topic)

    async def put_order(self, topic: str, order: str) -> None:
        """Set a topic's order configuration."""
        await self.put_value(ORDER_NAMESPACE, topic, order)

    async def add_order(self, topic: str, broker_name: str, queues: int) -> str:
        """Set one broker's part of a topic's order configuration; return the whole."""
        try:
            old = await self.get_order(topic)
        except NotFoundError:
            old = ""
        parts = {part.partition(":")[0]: part for part in old.split(";") if part}
        parts[broker_name] = f"{broker_name}:{queues}"
        order = ";".join(parts.values())
        await self.put_order(topic, order)
        return order

    async def delete_order(self, topic: str) -> None:
        """Delete a topic's order configuration. Idempotent."""
        await self.delete_value(ORDER_NAMESPACE, topic)

    async def _change_permission(
        self, code: RequestCode, broker_name: str, header: Header
    ) -> dict[str, RemotingCommand]:
        """Ask all NameServers; raises UnknownBrokerError, since they accept any name."""
        info = await self._session.cluster_info()
        if broker_name not in info.broker_addr_table:
            raise UnknownBrokerError(broker_name, info.broker_addr_table)
        return await self._session.ask_every_name_server(
            f"changing write permission of {broker_name}", code, header
        )


def _properties(address: str, answer: RemotingCommand) -> dict[str, str]:
    try:
        return dict(sorted(parse_properties(bytes(answer.body)).items()))
    except PropertiesError as error:
        raise UnreadableAnswerError(address, error) from error
