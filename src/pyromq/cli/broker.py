"""`pyromq broker`: run a broker, with the options of RocketMQ's mqbroker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from pyromq.base.settings import ConfigError
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerProperties, format_broker_properties, load_broker_properties
from pyromq.broker.state.persistence import PersistenceError
from pyromq.cli.running import (
    ServerOptions,
    Servers,
    bad_setting,
    config_options,
    read_properties,
    run_servers,
    server_options,
)
from pyromq.protocol import kernel
from pyromq.store.results import StoreError


@click.command()
@config_options
@click.option(
    "-n",
    "--namesrv",
    "--namesrvAddr",
    metavar="ADDRESSES",
    help="Register with these NameServers, given as host:port[;host:port].",
)
@server_options
def broker(
    config_file: str | None,
    namesrv: str | None,
    print_config: bool,
    print_important: bool,
    options: ServerOptions,
) -> None:
    """Run a broker, which stores messages and serves producers and consumers.

    The store is in storePathRootDir, by default `store` in the home directory.

    \b
    Examples
        pyromq broker -n 127.0.0.1:9876
        pyromq broker -m                          print the important settings
        pyromq broker -p > broker.properties      save all settings
        pyromq broker -c broker.properties --log-dir /var/log/pyromq
    """
    properties = read_properties(config_file)
    if namesrv is not None:
        properties["namesrvAddr"] = namesrv
    try:
        loaded = load_broker_properties(properties)
    except ConfigError as error:
        raise bad_setting(error, config_file) from error
    if print_config or print_important:
        click.echo(
            format_broker_properties(loaded.broker, loaded.store, only_important=not print_config),
            nl=False,
        )
        return
    run_servers(
        lambda servers: start_broker(
            servers, loaded, "choose another one with listenPort", config_file
        ),
        options,
        ("store.log", "broker.log"),
        loaded.warnings,
    )


async def start_broker(
    servers: Servers,
    loaded: BrokerProperties,
    other_port: str,
    config_file: str | None,
    announce: Callable[[str], object] = click.echo,
) -> Broker:
    """Start a broker and announce it with its boot line."""
    server = Broker(
        loaded.broker, loaded.store, config_file=Path(config_file) if config_file else None
    )
    await servers.start("broker", server, other_port, failures=(PersistenceError, StoreError))
    line = (
        f"The broker[{loaded.broker.broker_name}, {server.address}] boot success. "
        "serializeType=JSON"
    )
    if loaded.broker.namesrv_addr:
        line += f" and name server is {loaded.broker.namesrv_addr}"
    announce(f"{line} [{kernel.describe()}]")
    return server
