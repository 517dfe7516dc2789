"""`pyromq doctor`: the command line. The checks are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import orjson

from pyromq.base.command_options import access_key_option, add_options, secret_key_option
from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerProperties
from pyromq.cli.doctor.clocks import examine_clock
from pyromq.cli.doctor.disk import examine_disks
from pyromq.cli.doctor.finding import Finding, Level
from pyromq.cli.doctor.machine import examine_machine
from pyromq.cli.doctor.network import Access, examine_broker, examine_name_server, probe
from pyromq.cli.doctor.settings import bad_settings, examine_settings, load_settings_file
from pyromq.cli.doctor.software import examine_software
from pyromq.cli.doctor.stores import examine_store
from pyromq.protocol.wire import acl
from pyromq.store.config import MessageStoreConfig
from pyromq.store.lock import lock_holder
from pyromq.store.offline.check import guess_config
from pyromq.store.results import StoreError
from pyromq.tls.client import Tls, client_tls
from pyromq.tls.command_options import tls_options

_COLORS: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@dataclass(frozen=True, slots=True)
class _Subjects:
    """What to examine."""

    config_file: Path | None
    store: Path | None
    broker: str | None
    name_servers: tuple[str, ...]
    access: Access


@click.command()
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Examine this broker properties file, and the store and NameServers that it names.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Examine the store in this directory, also of a running broker.",
)
@click.option("--broker", metavar="ADDRESS", help="Examine the running broker at host:port.")
@click.option(
    "--namesrv",
    "namesrv",
    metavar="ADDRESSES",
    help="Examine the NameServers at host:port[;host:port].",
)
@click.option(
    "--probe",
    "only_probe",
    is_flag=True,
    help="Only check that --broker and --namesrv answer: a health check for containers.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Wait this many seconds for an answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and failures only.")
@tls_options
@add_options(access_key_option, secret_key_option)
def doctor(
    config_file: Path | None,
    store: Path | None,
    broker: str | None,
    namesrv: str | None,
    only_probe: bool,
    timeout: float,
    as_json: bool,
    quiet: bool,
    tls: bool | Tls,
    access_key: str,
    secret_key: str,
) -> None:
    """Examine this machine, and a store, a broker and NameServers, and say what to do.

    Checks limits and settings of the kernel, the installation, file systems, room and latency of
    disks, the clock; with --config or --store the end of the log; with addresses whether servers
    answer. Changes nothing, and is safe beside a running broker. The exit code is 1 if a check
    failed, warnings alone give 0.

    \b
    Examples
        pyromq doctor
        pyromq doctor -c /etc/pyromq/broker.properties --broker 127.0.0.1:10911
        pyromq doctor --probe --broker 127.0.0.1:10911
    """
    name_servers = tuple(part for part in (namesrv or "").split(";") if part)
    sign = acl.signer(access_key, secret_key)
    access = Access(
        client_tls(tls),
        None if sign is None else lambda request: sign(None, request),
        timeout,
    )
    if only_probe:
        addresses = [*([broker] if broker else []), *name_servers]
        if not addresses:
            raise click.UsageError("--probe needs --broker or --namesrv")
        found = list(probe(addresses, access))
    else:
        found = list(_examine(_Subjects(config_file, store, broker, name_servers, access)))
    failed = any(finding.level is Level.FAIL for finding in found)
    if as_json:
        value = {"ok": not failed, "findings": [finding.to_json() for finding in found]}
        click.echo(orjson.dumps(value).decode())
    else:
        for finding in found:
            if not quiet or finding.level is not Level.OK:
                _print(finding)
        _print_summary(found)
    if failed:
        raise SystemExit(1)


def _examine(subjects: _Subjects) -> Iterator[Finding]:
    loaded: BrokerProperties | None = None
    if subjects.config_file is not None:
        try:
            loaded = load_settings_file(subjects.config_file)
        except (click.ClickException, ConfigError) as error:
            text = error.message if isinstance(error, click.ClickException) else str(error)
            yield bad_settings(subjects.config_file, ConfigError(text))
        else:
            yield from examine_settings(subjects.config_file, loaded)
    config = _store_settings(subjects.store, loaded)
    process = None if config is None else lock_holder(config.root)
    yield from examine_software()
    yield from examine_machine(
        process=process, max_mapped_files=0 if config is None else config.max_mapped_files
    )
    yield from examine_clock()
    if config is not None:
        yield from examine_disks(config)
        if config.root.is_dir():
            yield from examine_store(config)
    yield from _examine_servers(subjects, loaded)


def _store_settings(
    store: Path | None, loaded: BrokerProperties | None
) -> MessageStoreConfig | None:
    if store is None:
        return None if loaded is None else loaded.store
    if not store.is_dir():
        raise click.ClickException(f"{store} is not a directory: give the root of a broker's store")
    if loaded is not None and loaded.store.root.resolve() == store.resolve():
        return loaded.store
    try:
        return guess_config(store)
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def _examine_servers(subjects: _Subjects, loaded: BrokerProperties | None) -> Iterator[Finding]:
    name_servers = subjects.name_servers
    broker_name = None
    if loaded is not None:
        broker_name = loaded.broker.broker_name if subjects.broker is not None else None
        configured = loaded.broker.namesrv_addr or ""
        name_servers = name_servers or tuple(part for part in configured.split(";") if part)
    if subjects.broker is not None:
        is_raft = loaded is not None and loaded.store.enable_dleger_commit_log
        yield from examine_broker(subjects.broker, subjects.access, has_replica_port=not is_raft)
    for address in name_servers:
        yield from examine_name_server(address, subjects.access, broker_name)


def _print(finding: Finding) -> None:
    level = click.style(f"{finding.level.value:4}", fg=_COLORS[finding.level])
    click.echo(f"{level}  {finding.check}: {finding.what}")
    if finding.level is not Level.OK:
        click.echo(f"      {finding.why}")
        click.echo(f"      -> {finding.advice}")


def _print_summary(found: list[Finding]) -> None:
    counts = {level: sum(finding.level is level for finding in found) for level in Level}
    click.echo(
        f"{counts[Level.OK]} ok, {counts[Level.WARN]} warnings, {counts[Level.FAIL]} failures",
        err=True,
    )
