"""`pyromq standalone`: run a NameServer and one or more brokers.

One broker runs in this process, beside the NameServer. With `--brokers`, `--replicas` or `--raft`,
processes run one broker each (`cli.brokers`), and this one has the NameServer and looks after them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from pyromq.acl.files import AclFileError
from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerConfig, BrokerProperties, load_broker_properties
from pyromq.broker.services.live_config import own_file
from pyromq.cli.broker import start_broker
from pyromq.cli.brokers.child import Order
from pyromq.cli.brokers.failover import Failover, Member, master_ports, until_following
from pyromq.cli.brokers.figures import Figures, Target
from pyromq.cli.brokers.layout import (
    MAX_BROKERS,
    MAX_NODES,
    MAX_REPLICAS,
    PORT_DISTANCE,
    Place,
    plan,
    plan_raft,
    with_metrics_ports,
)
from pyromq.cli.brokers.processes import BrokerProcesses
from pyromq.cli.brokers.roles import Role, assign
from pyromq.cli.brokers.topics import TopicSpread
from pyromq.cli.namesrv import start_namesrv
from pyromq.cli.running import (
    ServerOptions,
    Servers,
    bad_setting,
    mode_warnings,
    read_properties,
    run_servers,
    server_options,
)
from pyromq.metrics.settings import is_on
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.wire import acl
from pyromq.remoting.client import RemotingClient
from pyromq.store.config import BrokerRole

DEFAULT_DATA = "data"
_REGISTRATION_TIMEOUT_SECONDS = 60.0
_REGISTRATION_POLL_SECONDS = 0.05
#: How long the start waits for replicas to follow their masters.
_FOLLOWING_SECONDS = 10.0
_ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104 - recognised here, not bound
_LOOPBACK = "127.0.0.1"
_CONNECT_SECONDS = 2.0


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    help=f"Store messages in DIR [default: ./{DEFAULT_DATA}, or storePathRootDir of -c].",
)
@click.option(
    "--brokers",
    metavar="N",
    type=click.IntRange(1, MAX_BROKERS),
    default=1,
    show_default=True,
    help="Run N brokers, to use N cores. Several brokers run in processes of their own and store "
    "messages in DIR/broker-0, DIR/broker-1, ...",
)
@click.option(
    "--replicas",
    metavar="N",
    type=click.IntRange(0, MAX_REPLICAS),
    default=0,
    show_default=True,
    help="Run N replicas of each broker in processes of their own, to try replication and "
    "failovers. They store messages in DIR/broker-0-replica-1, ... Sends do not wait for them, "
    "unless -c has brokerRole=SYNC_MASTER.",
)
@click.option(
    "--raft",
    metavar="N",
    type=click.IntRange(0, MAX_NODES),
    default=0,
    show_default=True,
    help="Run a raft group of N nodes, usually 3, in processes of their own, to try elections. "
    "They store messages in DIR/raft-n0, DIR/raft-n1, ...",
)
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="Let the NameServer listen on this port; 0 picks a free one.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65534),
    help="Let the broker listen on this port; 0 picks a free one [default: 10911, or listenPort "
    f"of -c]. Further brokers listen {PORT_DISTANCE}, {2 * PORT_DISTANCE}, ... ports above it.",
)
@click.option(
    "--host",
    default=_LOOPBACK,
    show_default=True,
    help="Listen on this IP address. 0.0.0.0 opens the server to other machines, without access "
    "control unless -c has aclEnable=true.",
)
@click.option(
    "-c", "--config-file", metavar="FILE", help="Read broker settings from this .properties file."
)
@click.option(
    "--figures",
    metavar="SECONDS",
    type=click.IntRange(1, 86_400),
    help="Print message rates, CPU and memory of each broker at this interval, and totals at the "
    "end.",
)
@server_options
def standalone(
    data: str | None,
    brokers: int,
    replicas: int,
    raft: int,
    namesrv_port: int,
    broker_port: int | None,
    host: str,
    config_file: str | None,
    figures: int | None,
    options: ServerOptions,
) -> None:
    """Run a NameServer and one or more brokers.

    This is enough to try things out, and to serve one machine. Ctrl-C stops it cleanly; messages
    stay in the data directory.

    \b
    Examples
        pyromq standalone
        pyromq standalone --data /var/lib/pyromq --host 0.0.0.0
        pyromq standalone --brokers 4 --figures 10
        pyromq standalone --replicas 1
        pyromq standalone --raft 3
    """
    if raft and (brokers > 1 or replicas):
        raise click.UsageError("--raft cannot be combined with --brokers or --replicas.")
    given = read_properties(config_file)
    overrides = {"bindAddress": given.get("bindAddress", host)}
    try:
        ipaddress.ip_address(host)  # records store the broker's address as bytes, not as a name
    except ValueError:
        raise click.BadParameter(f"{host!r} is not an IP address", param_hint="--host") from None
    if host not in _ALL_INTERFACES:
        # Without brokerIP1 the broker announces the machine's own address.
        overrides["brokerIP1"] = given.get("brokerIP1", host)
        overrides["brokerIP2"] = given.get("brokerIP2", host)
    if broker_port is not None:
        overrides["listenPort"] = str(broker_port)
    if data is not None or "storePathRootDir" not in given:
        overrides["storePathRootDir"] = str(Path(data or DEFAULT_DATA).absolute())
    settings = _Settings(given, overrides, config_file)
    checked = settings.load({"namesrvAddr": format_address(_LOOPBACK, 9876)})
    # In compatible mode the NameServer is open, as RocketMQ's is.
    guards_namesrv = checked.broker.acl_enable and checked.broker.is_acl_strict
    if guards_namesrv:
        try:
            checked.broker.check_registration(_reachable(host))
        except ConfigError as error:
            raise bad_setting(error, config_file) from error
        except (AclFileError, OSError) as error:
            raise click.ClickException(str(error)) from error
    root = Path(checked.store.store_path_root_dir)
    port = checked.broker.listen_port
    if raft:
        places = plan_raft(raft, root, _raft_host(host), port, given, namesrv_port)
    else:
        places = plan(brokers, root, port, given, namesrv_port, replicas=replicas)
    if is_on(checked.broker):
        places = with_metrics_ports(places, checked.broker.metrics_prom_exporter_port)
    members = _raft_members(settings, places) if raft else _members(settings, places, checked)
    namesrv_config = NamesrvConfig(
        listen_port=namesrv_port,
        bind_address=host,
        kv_config_path=str(root / "namesrv" / "kvConfig.json"),
        config_store_path=str(root / "namesrv" / "namesrv.properties"),
        acl_enable=guards_namesrv,
        acl_mode=checked.broker.acl_mode,
        rocketmq_home=checked.broker.rocketmq_home,
        acl_plain_file=checked.broker.acl_plain_file,
        audit_log_max_bytes=checked.broker.audit_log_max_bytes,
        audit_log_files=checked.broker.audit_log_files,
        **_namesrv_metrics(checked.broker, len(places)),
        **checked.broker.tls_values(),
    )
    keys = checked.broker.replication_access_key, checked.broker.replication_secret_key
    cluster = _Cluster(settings, members, options, namesrv_config, figures, acl.signer(*keys))
    own_logs = ("store.log", "namesrv.log", "broker.log")
    logs = own_logs if len(members) == 1 else ("namesrv.log", "standalone.log")
    warnings = [*checked.warnings, *mode_warnings(config_file, [BrokerConfig])]
    run_servers(cluster.start, options, logs, warnings)
    cluster.check_end()


def _namesrv_metrics(config: BrokerConfig, brokers: int) -> dict[str, Any]:
    """Return the settings of the NameServer's metrics: the brokers', and the port after theirs."""
    port = config.metrics_prom_exporter_port
    return {
        "metrics_exporter_type": config.metrics_exporter_type,
        "metrics_prom_exporter_port": port + brokers if port else 0,
        "metrics_prom_exporter_host": config.metrics_prom_exporter_host,
        "metrics_label": config.metrics_label,
        "metrics_otel_cardinality_limit": config.metrics_otel_cardinality_limit,
    }


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of all brokers: those of the file, and those of the command line."""

    given: dict[str, str]
    overrides: dict[str, str]
    config_file: str | None

    def load(self, more: dict[str, str]) -> BrokerProperties:
        """Return the settings with some more; raise click.ClickException if one is invalid."""
        try:
            return load_broker_properties({**self.given, **self.overrides, **more})
        except ConfigError as error:
            raise bad_setting(error, self.config_file) from error


class _Member(NamedTuple):
    """A broker of the command."""

    broker_name: str
    place: Place
    #: None for a broker without replicas.
    role: Role | None
    role_file: Path

    def properties(self) -> dict[str, str]:
        """Return the settings that only this broker has."""
        role = {} if self.role is None else self.role.properties()
        return {**self.place.properties(), **role}


def _members(
    settings: _Settings, places: Sequence[Place], checked: BrokerProperties
) -> dict[str, _Member]:
    """Return the brokers by the names of their processes: broker-0, broker-0-replica-1, ...

    Raises click.ClickException if two would have the same name, or there would be two masters.
    """
    loaded = [settings.load(place.properties()) for place in places]
    files = [own_file(each.store) for each in loaded]
    names = [each.broker.broker_name for each in loaded]
    firsts = [name for name, place in zip(names, places, strict=True) if not place.replica]
    if len(set(firsts)) < len(firsts):
        raise click.ClickException(
            f"the brokers would be called {', '.join(firsts)}, two of them the same: set another "
            "brokerName in a file for -c"
        )
    members = {}
    for number in range(len(firsts)):
        group = [index for index, place in enumerate(places) if place.number == number]
        roles: Sequence[Role | None] = [None]
        if len(group) > 1:
            _check_roles(checked)
            roles = assign([files[index] for index in group], checked.store.broker_role.name)
        for index, role in zip(group, roles, strict=True):
            name, place = names[index], places[index]
            label = f"{name}-replica-{place.replica}" if place.replica else name
            members[label] = _Member(name, place, role, files[index])
    return members


def _raft_members(settings: _Settings, places: Sequence[Place]) -> dict[str, _Member]:
    """Return the nodes of a raft group by the names of their processes: raft-n0, raft-n1, ..."""
    members = {}
    for place in places:
        loaded = settings.load(place.properties())
        name = loaded.broker.broker_name
        members[place.directory.name] = _Member(name, place, None, own_file(loaded.store))
    return members


def _raft_host(host: str) -> str:
    """Return the address at which the nodes reach each other; DLedger has no IPv6."""
    if ":" in host and host not in _ALL_INTERFACES:
        raise click.UsageError("--raft needs an IPv4 address as --host.")
    return _reachable(host)


def _check_roles(checked: BrokerProperties) -> None:
    if checked.store.broker_role is BrokerRole.SLAVE:
        raise click.ClickException(
            "brokerRole=SLAVE cannot be combined with --replicas: remove it, the replicas get it"
        )
    if checked.store.ha_master_address is not None:
        raise click.ClickException(
            "haMasterAddress cannot be combined with --replicas: remove it, the replicas find "
            "their masters"
        )


class _Cluster:
    """The servers of the command."""

    def __init__(
        self,
        settings: _Settings,
        members: Mapping[str, _Member],
        options: ServerOptions,
        namesrv_config: NamesrvConfig,
        figures: float | None,
        sign: acl.Signer | None,
    ) -> None:
        """`members` are the brokers by the names of their processes."""
        self._settings = settings
        self._members = members
        self._options = options
        self._namesrv_config = namesrv_config
        self._figures = figures
        #: Signs requests to the brokers, None without a key.
        self._sign = sign
        self._processes: BrokerProcesses | None = None
        self._own_broker: Target | None = None
        #: Where this process reaches the brokers.
        self._host = _reachable(settings.overrides["bindAddress"])

    async def start(self, servers: Servers) -> None:
        """Start everything; print all lines at once, when clients can connect."""
        # Programs wait for the first line, the NameServer's.
        lines: list[str] = []
        server = await start_namesrv(
            servers, self._namesrv_config, "choose another one with --namesrv-port", lines.append
        )
        address = format_address(_reachable(self._namesrv_config.bind_address), server.port)
        if len(self._members) == 1:
            lines += await self._start_own(servers, address)
        else:
            lines += await self._start_processes(servers, server, address)
        if servers.stop_requested.is_set():
            return
        await _until_registered(server, {each.broker_name for each in self._members.values()})
        if self._has_replicas:
            replicas = self._replica_addresses(server)
            await until_following(replicas, _FOLLOWING_SECONDS, self._client(server))
        if self._is_raft:
            await self._until_led(server)
        if self._figures is not None or self._processes is not None:
            figures = Figures(self._targets, self._figures, client=self._client(server))
            await servers.start("figures", figures, "", failures=())
        directories = [each.place.directory for each in self._members.values()]
        lines.append(_guide(address, directories))
        if self._has_replicas:
            lines.append(self._failover_guide(server))
        if self._is_raft and self._processes is not None:
            lines.append(self._election_guide(server, address))
        click.echo("\n".join([*lines, "Ctrl-C stops."]))

    def _client(self, server: NameServer) -> RemotingClient:
        """Return a client of the brokers, which signs as they do."""
        return RemotingClient(
            connect_timeout=_CONNECT_SECONDS, tls=server.tls.client, before_request=self._sign
        )

    async def _start_own(self, servers: Servers, namesrv_address: str) -> list[str]:
        """Start the only broker, in this process; return its boot line."""
        ((name, member),) = self._members.items()
        loaded = self._settings.load({**member.properties(), "namesrvAddr": namesrv_address})
        lines: list[str] = []
        broker = await start_broker(
            servers,
            loaded,
            "choose another one with --broker-port",
            self._settings.config_file,
            lines.append,
        )
        address = format_address(self._host, broker.port)
        self._own_broker = Target(name, address, os.getpid())
        return lines

    async def _start_processes(
        self, servers: Servers, name_server: NameServer, namesrv_address: str
    ) -> list[str]:
        """Start a process for each broker; return their boot lines."""
        options, overrides = self._options, self._settings.overrides
        topics = TopicSpread(
            name_server, lambda: self._masters(name_server), self._client(name_server)
        )
        self._processes = processes = BrokerProcesses(
            {
                name: Order(
                    {**overrides, **member.properties(), "namesrvAddr": namesrv_address},
                    self._settings.config_file,
                    options.log_level,
                    None if options.log_dir is None else str(Path(options.log_dir) / name),
                    options.log_size,
                    options.log_files,
                    options.log_format,
                    options.log_compress,
                    keeps_role=member.role is not None,
                )
                for name, member in self._members.items()
            },
            servers.stop_requested,
            servers.stop,
            lambda name, topic: topics.created(self._members[name].broker_name, topic),
            comeback=self._failover(name_server) if self._has_replicas else None,
            stops_last=lambda: self._leader(name_server) if self._is_raft else None,
        )
        await servers.start("brokers", processes, "", failures=())
        await servers.start("topics", topics, "", failures=())
        return processes.boot_lines

    def _targets(self) -> list[Target]:
        if self._processes is None:
            return [] if self._own_broker is None else [self._own_broker]
        return [
            Target(each.name, format_address(self._host, each.port), each.pid, each.restarts)
            for each in self._processes.running()
        ]

    # Replicas

    @property
    def _has_replicas(self) -> bool:
        return any(each.role is not None for each in self._members.values())

    def _failover(self, name_server: NameServer) -> Failover:
        return Failover(
            name_server,
            {
                name: Member(each.broker_name, each.role, each.role_file)
                for name, each in self._members.items()
                if each.role is not None
            },
        )

    def _masters(self, name_server: NameServer) -> dict[str, str]:
        """Return the addresses of the masters by the names of the brokers."""
        names = {each.broker_name for each in self._members.values()}
        ports = master_ports(name_server, names)
        return {name: format_address(self._host, port) for name, port in ports.items()}

    def _replica_addresses(self, name_server: NameServer) -> list[str]:
        masters = self._masters(name_server).values()
        return [each.address for each in self._targets() if each.address not in masters]

    def _failover_guide(self, name_server: NameServer) -> str:
        """Return how to try a failover of the first broker."""
        names = {target.address: target for target in self._targets()}
        name, address = next(iter(self._masters(name_server).items()))
        replica = next(
            target
            for target in self._targets()
            if self._members[target.name].broker_name == name and target.address != address
        )
        return (
            f"{replica.name} at {replica.address} is a replica. To try a failover:\n"
            f"    kill -9 {names[address].pid}\n"
            f"    pyromq broker promote {replica.address}\n"
            "and the old master comes back as a replica."
        )

    # Raft

    @property
    def _is_raft(self) -> bool:
        return any(each.place.raft for each in self._members.values())

    async def _until_led(self, name_server: NameServer) -> None:
        """Wait until the group has elected a leader, which is registered as the master."""
        try:
            async with asyncio.timeout(_REGISTRATION_TIMEOUT_SECONDS):
                while not self._masters(name_server):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_REGISTRATION_POLL_SECONDS)
        except TimeoutError:
            raise click.ClickException(
                f"the raft group has no leader after {_REGISTRATION_TIMEOUT_SECONDS:g} s: see the "
                "log"
            ) from None

    def _leader(self, name_server: NameServer) -> str | None:
        """Return the name of the process that leads."""
        masters = self._masters(name_server).values()
        return next((each.name for each in self._targets() if each.address in masters), None)

    def _election_guide(self, name_server: NameServer, namesrv_address: str) -> str:
        """Return how to try an election."""
        leader = self._leader(name_server)
        found = next((each for each in self._targets() if each.name == leader), None)
        if found is None:  # it has just died
            return ""
        option = _option(namesrv_address)
        return (
            f"{found.name} at {found.address} leads. To try an election:\n"
            f"    kill -9 {found.pid}\n"
            f"    pyromq raft status{option} --watch 1\n"
            "and the old leader comes back as a follower."
        )

    def check_end(self) -> None:
        """Raise click.ClickException if a broker did not stop cleanly, or stopped for good."""
        given_up = [] if self._processes is None else self._processes.given_up()
        if given_up:
            raise click.ClickException("\n".join(given_up))
        unclean = [] if self._processes is None else self._processes.unclean()
        if unclean:
            raise click.ClickException(
                f"not all brokers stopped cleanly: {', '.join(unclean)}; their stores recover at "
                "the next start"
            )


def _reachable(host: str) -> str:
    """Return the address under which this machine reaches a server that listens on `host`."""
    return _LOOPBACK if host in _ALL_INTERFACES else host


async def _until_registered(server: NameServer, broker_names: Iterable[str]) -> None:
    """Wait until the brokers have registered; they retry failed attempts themselves."""
    missing = set(broker_names)
    try:
        async with asyncio.timeout(_REGISTRATION_TIMEOUT_SECONDS):
            while missing := missing - server.routes.cluster_info().broker_addr_table.keys():  # noqa: ASYNC110
                await asyncio.sleep(_REGISTRATION_POLL_SECONDS)
    except TimeoutError:
        raise click.ClickException(
            f"broker {', '.join(sorted(missing))} did not register with its NameServer within "
            f"{_REGISTRATION_TIMEOUT_SECONDS:g} s: see the log"
        ) from None


def _option(namesrv_address: str) -> str:
    return "" if namesrv_address == "127.0.0.1:9876" else f" --namesrv {namesrv_address}"


def _guide(namesrv_address: str, directories: Sequence[Path]) -> str:
    option = _option(namesrv_address)
    return (
        f"Messages are stored in {', '.join(map(str, directories))}. In another shell:\n"
        f"    pyromq send{option} greetings 'hello'\n"
        f"    pyromq consume{option} greetings --from first"
    )
