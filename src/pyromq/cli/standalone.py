"""`pyromq standalone`: run a NameServer and one or more brokers.

One broker runs in this process, beside the NameServer. With `--brokers N`, N processes run one
broker each (`cli.brokers`), and this one has the NameServer and looks after them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerProperties, load_broker_properties
from pyromq.cli.broker import start_broker
from pyromq.cli.brokers.child import Order
from pyromq.cli.brokers.figures import Figures, Target
from pyromq.cli.brokers.layout import MAX_BROKERS, PORT_DISTANCE, Place, plan
from pyromq.cli.brokers.processes import BrokerProcesses
from pyromq.cli.brokers.topics import TopicSpread
from pyromq.cli.namesrv import start_namesrv
from pyromq.cli.running import (
    ServerOptions,
    Servers,
    bad_setting,
    read_properties,
    run_servers,
    server_options,
)
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.message_id import format_address

DEFAULT_DATA = "data"
_REGISTRATION_TIMEOUT_SECONDS = 60.0
_REGISTRATION_POLL_SECONDS = 0.05
_ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104 - recognised here, not bound
_LOOPBACK = "127.0.0.1"


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
    "control.",
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
    """
    given = read_properties(config_file)
    overrides = {"bindAddress": given.get("bindAddress", host)}
    try:
        ipaddress.ip_address(host)  # records store the broker's address as bytes, not as a name
    except ValueError:
        raise click.BadParameter(f"{host!r} is not an IP address", param_hint="--host") from None
    if host not in _ALL_INTERFACES:
        # Without brokerIP1 the broker announces the machine's own address.
        overrides["brokerIP1"] = given.get("brokerIP1", host)
    if broker_port is not None:
        overrides["listenPort"] = str(broker_port)
    if data is not None or "storePathRootDir" not in given:
        overrides["storePathRootDir"] = str(Path(data or DEFAULT_DATA).absolute())
    settings = _Settings(given, overrides, config_file)
    checked = settings.load({"namesrvAddr": format_address(_LOOPBACK, 9876)})
    root = Path(checked.store.store_path_root_dir)
    places = plan(brokers, root, checked.broker.listen_port, given, namesrv_port)
    names = [settings.load(place.properties()).broker.broker_name for place in places]
    if len(set(names)) < brokers:
        raise click.ClickException(
            f"the brokers would be called {', '.join(names)}, two of them the same: set another "
            "brokerName in a file for -c"
        )
    namesrv_config = NamesrvConfig(
        listen_port=namesrv_port,
        bind_address=host,
        kv_config_path=str(root / "namesrv" / "kvConfig.json"),
        config_store_path=str(root / "namesrv" / "namesrv.properties"),
    )
    cluster = _Cluster(
        settings, dict(zip(names, places, strict=True)), options, namesrv_config, figures
    )
    own_logs = ("store.log", "namesrv.log", "broker.log")
    logs = own_logs if brokers == 1 else ("namesrv.log", "standalone.log")
    run_servers(cluster.start, options, logs, checked.warnings)
    cluster.check_end()


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


class _Cluster:
    """The servers of the command."""

    def __init__(
        self,
        settings: _Settings,
        places: Mapping[str, Place],
        options: ServerOptions,
        namesrv_config: NamesrvConfig,
        figures: float | None,
    ) -> None:
        """`places` are those of the brokers, by name."""
        self._settings = settings
        self._places = places
        self._options = options
        self._namesrv_config = namesrv_config
        self._figures = figures
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
        if len(self._places) == 1:
            lines += await self._start_own(servers, address)
        else:
            lines += await self._start_processes(servers, server, address)
        if servers.stop_requested.is_set():
            return
        await _until_registered(server, self._places)
        if self._figures is not None or self._processes is not None:
            figures = Figures(self._targets, self._figures)
            await servers.start("figures", figures, "", failures=())
        directories = [place.directory for place in self._places.values()]
        click.echo("\n".join([*lines, _guide(address, directories)]))

    async def _start_own(self, servers: Servers, namesrv_address: str) -> list[str]:
        """Start the only broker, in this process; return its boot line."""
        ((name, place),) = self._places.items()
        loaded = self._settings.load({**place.properties(), "namesrvAddr": namesrv_address})
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
            name_server, lambda: {each.name: each.address for each in self._targets()}
        )
        self._processes = processes = BrokerProcesses(
            {
                name: Order(
                    {**overrides, **place.properties(), "namesrvAddr": namesrv_address},
                    self._settings.config_file,
                    options.log_level,
                    None if options.log_dir is None else str(Path(options.log_dir) / name),
                    options.log_size,
                    options.log_files,
                )
                for name, place in self._places.items()
            },
            servers.stop_requested,
            servers.stop,
            topics.created,
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

    def check_end(self) -> None:
        """Raise click.ClickException if a broker did not stop cleanly."""
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


def _guide(namesrv_address: str, directories: Sequence[Path]) -> str:
    option = "" if namesrv_address == "127.0.0.1:9876" else f" --namesrv {namesrv_address}"
    return (
        f"Messages are stored in {', '.join(map(str, directories))}. In another shell:\n"
        f"    pyromq send{option} greetings 'hello'\n"
        f"    pyromq consume{option} greetings --from first\n"
        "Ctrl-C stops."
    )
