"""`pyromq standalone`: a NameServer and a broker in one process, to begin with."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

import click

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
from pyromq.protocol.message.message_id import format_address

if TYPE_CHECKING:
    from pyromq.broker.config import BrokerProperties
    from pyromq.nameserver.server import NameServer

DEFAULT_DATA = "data"
#: How long the broker's registration may take, and the time between looks for it.
_REGISTRATION_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - recognised here, not bound


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    help=f"Where messages are kept [default: ./{DEFAULT_DATA}, or storePathRootDir of -c].",
)
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="Port of the NameServer; 0 takes a free one.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535),
    help="Port of the broker; 0 takes a free one [default: 10911, or listenPort of -c].",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. 0.0.0.0 lets other machines in: there is no access control.",
)
@click.option(
    "-c", "--config-file", metavar="FILE", help="Settings of the broker: a .properties file."
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

    All that is needed to try things out, and enough for one machine. Ctrl-C stops it cleanly;
    messages stay in the data directory.

    \b
    Examples
        pyromq standalone
        pyromq standalone --data /var/lib/pyromq --host 0.0.0.0
    """
    from pyromq.base.settings import ConfigError
    from pyromq.broker.config import load_broker_properties
    from pyromq.nameserver.config import NamesrvConfig

    properties = read_properties(config_file)
    if data is not None or "storePathRootDir" not in properties:
        properties["storePathRootDir"] = str(Path(data or DEFAULT_DATA).absolute())
    if broker_port is not None:
        properties["listenPort"] = str(broker_port)
    try:
        ipaddress.ip_address(host)  # records hold the broker's address as bytes, not as a name
    except ValueError:
        raise click.BadParameter(f"{host!r} is no IP address", param_hint="--host") from None
    if host not in _EVERYWHERE:
        # Otherwise the broker announces the machine's own address.
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
        # Told together, when clients find the broker: programs wait for the first such line.
        lines: list[str] = []
        server = await start_namesrv(
            servers, namesrv_config, "choose another one with --namesrv-port", lines.append
        )
        reachable = "127.0.0.1" if host in _EVERYWHERE else host
        address = format_address(reachable, server.port)
        loaded = load(address)
        await start_broker(
            servers, loaded, "choose another one with --broker-port", config_file, lines.append
        )
        await _until_registered(server, loaded.broker.broker_name)
        click.echo("\n".join([*lines, _guide(address, root)]))

    run_servers(start, options, ("store.log", "namesrv.log", "broker.log"), checked.warnings)


async def _until_registered(server: NameServer, broker_name: str) -> None:
    """Wait for the broker's registration: an attempt that failed is made again later."""
    try:
        async with asyncio.timeout(_REGISTRATION_SECONDS):
            while broker_name not in server.routes.cluster_info().broker_addr_table:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise click.ClickException(
            f"broker {broker_name} could not register at its NameServer within "
            f"{_REGISTRATION_SECONDS:g} s: see the log"
        ) from None


def _guide(namesrv_address: str, root: Path) -> str:
    option = "" if namesrv_address == "127.0.0.1:9876" else f" --namesrv {namesrv_address}"
    return (
        f"Messages are kept in {root}. In another shell:\n"
        f"    pyromq send{option} greetings 'hello'\n"
        f"    pyromq consume{option} greetings --from first\n"
        "Ctrl-C stops."
    )
