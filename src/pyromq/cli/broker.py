"""`pyromq broker`: run a broker, with the options of RocketMQ's mqbroker.

A group whose commands change a running broker; without a command it runs one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from pyromq.acl.files import AclFileError
from pyromq.base.settings import ConfigError
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerProperties, format_broker_properties, load_broker_properties
from pyromq.broker.extensions import ExtensionError
from pyromq.broker.state.persistence import PersistenceError
from pyromq.cli.lazy_group import LazyGroup
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
from pyromq.protocol import kernel
from pyromq.store.results import StoreError
from pyromq.tls.errors import TlsError

#: Name to the command's module and attribute, and its line in `pyromq broker --help`.
COMMANDS = {
    "promote": ("pyromq.cli.promote:promote", "Turn a replica into a master."),
    "replicas": ("pyromq.cli.replicas:replicas", "Show how far replicas are behind."),
}


@click.group(cls=LazyGroup, table=COMMANDS, invoke_without_command=True)
@config_options
@click.option(
    "-n",
    "--namesrv",
    "--namesrvAddr",
    metavar="ADDRESSES",
    help="Register with these NameServers, given as host:port[;host:port].",
)
@server_options
@click.pass_context
def broker(
    context: click.Context,
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
        pyromq broker promote 10.0.0.2:10911      make a running replica the master
    """
    if context.invoked_subcommand is not None:
        return
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
        [*loaded.warnings, *mode_warnings(config_file, [type(loaded.broker)])],
    )


async def start_broker(
    servers: Servers,
    loaded: BrokerProperties,
    other_port: str,
    config_file: str | None,
    announce: Callable[[str], object] = click.echo,
    *,
    role_file: Path | None = None,
) -> Broker:
    """Start a broker and announce it with its boot line."""
    server = Broker(
        loaded.broker,
        loaded.store,
        config_file=Path(config_file) if config_file else None,
        role_file=role_file,
        on_failure=lambda reason: servers.stop(click.ClickException(f"broker stopped: {reason}")),
    )
    await servers.start(
        "broker",
        server,
        other_port,
        failures=(AclFileError, ExtensionError, PersistenceError, StoreError, TlsError),
    )
    line = (
        f"The broker[{loaded.broker.broker_name}, {server.address}] boot success. "
        "serializeType=JSON"
    )
    if loaded.broker.namesrv_addr:
        line += f" and name server is {loaded.broker.namesrv_addr}"
    announce(f"{line} [{kernel.describe()}]")
    return server
