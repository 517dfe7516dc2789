"""`pyromq namesrv`: run a NameServer, with the options of RocketMQ's mqnamesrv."""

from __future__ import annotations

from collections.abc import Callable

import click

from pyromq.acl.files import AclFileError
from pyromq.base.settings import ConfigError, format_settings
from pyromq.cli.running import (
    ServerOptions,
    Servers,
    bad_setting,
    config_options,
    mode_warnings,
    read_properties,
    run_servers,
    server_options,
)
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.kv_config import KVConfigFileError
from pyromq.nameserver.server import NameServer
from pyromq.protocol.message.message_id import format_address
from pyromq.tls.errors import TlsError


@click.command()
@config_options
@click.option(
    "-n",
    "--namesrvAddr",
    "_namesrv",
    metavar="ADDRESSES",
    expose_value=False,
    help="Accepted for compatibility with mqnamesrv and ignored: NameServers are independent.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port [default: 9876].")
@server_options
def namesrv(
    config_file: str | None,
    print_config: bool,
    print_important: bool,
    port: int | None,
    options: ServerOptions,
) -> None:
    """Run a NameServer, which tells clients which brokers serve a topic.

    Brokers register themselves (pyromq broker -n ADDRESS). NameServers do not talk to each other:
    a broker registers with every one of them.

    \b
    Examples
        pyromq namesrv
        pyromq namesrv --port 9877
        pyromq namesrv -p > namesrv.properties
        pyromq namesrv -c namesrv.properties
    """
    config, warnings = load_namesrv_config(config_file, port)
    if print_config or print_important:
        click.echo(format_settings(config, only_important=not print_config), nl=False)
        return
    run_servers(
        lambda servers: start_namesrv(servers, config, "choose another one with --port"),
        options,
        ("namesrv.log",),
        [*warnings, *mode_warnings(config_file, [NamesrvConfig])],
    )


def load_namesrv_config(
    config_file: str | None, port: int | None
) -> tuple[NamesrvConfig, list[str]]:
    """Load the settings of a file, overridden by options, with warnings about them."""
    properties = read_properties(config_file)
    if config_file is not None:
        properties.setdefault("configStorePath", config_file)
    if port is not None:
        properties["listenPort"] = str(port)
    try:
        return NamesrvConfig.load(properties)
    except ConfigError as error:
        raise bad_setting(error, config_file) from error


async def start_namesrv(
    servers: Servers,
    config: NamesrvConfig,
    other_port: str,
    announce: Callable[[str], object] = click.echo,
) -> NameServer:
    """Start a NameServer and announce it with its boot line."""
    server = NameServer(config)
    await servers.start(
        "NameServer", server, other_port, failures=(AclFileError, KVConfigFileError, TlsError)
    )
    announce(
        "The Name Server boot success. serializeType=JSON, "
        f"listening on {format_address(config.bind_address, server.port)}"
    )
    return server
