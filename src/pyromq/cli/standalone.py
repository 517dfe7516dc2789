"""`pyromq standalone`: run a NameServer and a broker in one process."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path

import click

from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerProperties, load_broker_properties
from pyromq.cli.broker import start_broker
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


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    help=f"Store messages in DIR [default: ./{DEFAULT_DATA}, or storePathRootDir of -c].",
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
    type=click.IntRange(0, 65535),
    help="Let the broker listen on this port; 0 picks a free one [default: 10911, or listenPort "
    "of -c].",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Listen on this IP address. 0.0.0.0 opens the server to other machines, without access "
    "control.",
)
@click.option(
    "-c", "--config-file", metavar="FILE", help="Read broker settings from this .properties file."
)
@server_options
def standalone(
    data: str | None,
    namesrv_port: int,
    broker_port: int | None,
    host: str,
    config_file: str | None,
    options: ServerOptions,
) -> None:
    """Run a NameServer and a broker in one process.

    This is enough to try things out, and to serve one machine. Ctrl-C stops it cleanly; messages
    stay in the data directory.

    \b
    Examples
        pyromq standalone
        pyromq standalone --data /var/lib/pyromq --host 0.0.0.0
    """
    properties = read_properties(config_file)
    if data is not None or "storePathRootDir" not in properties:
        properties["storePathRootDir"] = str(Path(data or DEFAULT_DATA).absolute())
    if broker_port is not None:
        properties["listenPort"] = str(broker_port)
    try:
        ipaddress.ip_address(host)  # records store the broker's address as bytes, not as a name
    except ValueError:
        raise click.BadParameter(f"{host!r} is not an IP address", param_hint="--host") from None
    if host not in _ALL_INTERFACES:
        # Without brokerIP1 the broker announces the machine's own address.
        properties.setdefault("brokerIP1", host)
    properties.setdefault("bindAddress", host)

    def load(namesrv_address: str) -> BrokerProperties:
        return load_broker_properties({**properties, "namesrvAddr": namesrv_address})

    try:
        checked = load(format_address("127.0.0.1", 9876))
    except ConfigError as error:
        raise bad_setting(error, config_file) from error
    root = Path(checked.store.store_path_root_dir)
    namesrv_config = NamesrvConfig(
        listen_port=namesrv_port,
        bind_address=host,
        kv_config_path=str(root / "namesrv" / "kvConfig.json"),
        config_store_path=str(root / "namesrv" / "namesrv.properties"),
    )

    async def start(servers: Servers) -> None:
        # Print all lines at once, after the broker registered: programs wait for the first one.
        lines: list[str] = []
        server = await start_namesrv(
            servers, namesrv_config, "choose another one with --namesrv-port", lines.append
        )
        reachable = "127.0.0.1" if host in _ALL_INTERFACES else host
        address = format_address(reachable, server.port)
        loaded = load(address)
        await start_broker(
            servers, loaded, "choose another one with --broker-port", config_file, lines.append
        )
        await _until_registered(server, loaded.broker.broker_name)
        click.echo("\n".join([*lines, _guide(address, root)]))

    run_servers(start, options, ("store.log", "namesrv.log", "broker.log"), checked.warnings)


async def _until_registered(server: NameServer, broker_name: str) -> None:
    """Wait until the broker has registered; it retries failed attempts itself."""
    try:
        async with asyncio.timeout(_REGISTRATION_TIMEOUT_SECONDS):
            while broker_name not in server.routes.cluster_info().broker_addr_table:  # noqa: ASYNC110
                await asyncio.sleep(_REGISTRATION_POLL_SECONDS)
    except TimeoutError:
        raise click.ClickException(
            f"broker {broker_name} did not register with its NameServer within "
            f"{_REGISTRATION_TIMEOUT_SECONDS:g} s: see the log"
        ) from None


def _guide(namesrv_address: str, root: Path) -> str:
    option = "" if namesrv_address == "127.0.0.1:9876" else f" --namesrv {namesrv_address}"
    return (
        f"Messages are stored in {root}. In another shell:\n"
        f"    pyromq send{option} greetings 'hello'\n"
        f"    pyromq consume{option} greetings --from first\n"
        "Ctrl-C stops."
    )
