"""`pyromq namesrv`: one NameServer, with the options of RocketMQ's mqnamesrv."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

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
    from pyromq.nameserver.config import NamesrvConfig
    from pyromq.nameserver.server import NameServer


@click.command()
@click.option(
    "-c",
    "--config-file",
    "--configFile",
    metavar="FILE",
    help="Settings: a .properties file with RocketMQ's keys.",
)
@click.option(
    "-n",
    "--namesrvAddr",
    "_namesrv",
    metavar="ADDRESSES",
    expose_value=False,
    help="Accepted, as by mqnamesrv, and of no use: NameServers do not know each other.",
)
@click.option(
    "-p", "--print-config", "--printConfigItem", is_flag=True, help="Print all settings and exit."
)
@click.option(
    "-m",
    "--print-important",
    "--printImportantConfig",
    is_flag=True,
    help="Print important settings and exit.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on [default: 9876].")
@server_options
def namesrv(
    config_file: str | None,
    print_config: bool,
    print_important: bool,
    port: int | None,
    options: ServerOptions,
) -> None:
    """Run a NameServer: it tells clients which brokers have a topic.

    Brokers register themselves (pyromq broker -n ADDRESS). Several NameServers know nothing of
    each other; brokers register with each of them.

    \b
    Examples
        pyromq namesrv
        pyromq namesrv --port 9877
        pyromq namesrv -p > namesrv.properties
        pyromq namesrv -c namesrv.properties
    """
    from pyromq.base.settings import format_settings

    config, warnings = load_namesrv_config(config_file, port)
    if print_config or print_important:
        click.echo(format_settings(config, only_important=not print_config), nl=False)
        return
    run_servers(
        lambda servers: start_namesrv(servers, config, "choose another one with --port"),
        options,
        ("namesrv.log",),
        warnings,
    )


def load_namesrv_config(
    config_file: str | None, port: int | None
) -> tuple[NamesrvConfig, list[str]]:
    """Load the settings of a file, overridden by options, with warnings about them."""
    from pyromq.base.settings import ConfigError
    from pyromq.nameserver.config import NamesrvConfig

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
    from pyromq.nameserver.kv_config import KVConfigFileError
    from pyromq.nameserver.server import NameServer

    server = NameServer(config)
    await servers.start("NameServer", server, other_port, failures=(KVConfigFileError,))
    announce(
        "The Name Server boot success. serializeType=JSON, "
        f"listening on {format_address(config.bind_address, server.port)}"
    )
    return server
