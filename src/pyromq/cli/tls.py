"""`pyromq tls`: certificates for tests.

Needs the extra `pyromq[tls]`.
"""

from __future__ import annotations

from pathlib import Path

import click

from pyromq.cli.lazy_group import HelpfulGroup
from pyromq.tls.certificates import DEFAULT_HOSTS, make_test_certificates
from pyromq.tls.errors import TlsError


@click.group(cls=HelpfulGroup)
def tls() -> None:
    """Make certificates for tests."""


@tls.command("make-test-certs")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    default=DEFAULT_HOSTS,
    show_default=True,
    help="Name this host or IP address in the server's certificate. Repeatable. Brokers need the "
    "address that they register, brokerIP1.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=30,
    show_default=True,
    help="Let the certificates expire after this many days.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def make_test_certs(directory: Path, hosts: tuple[str, ...], days: int, force: bool) -> None:
    """Write an authority, a server and a client certificate with their keys to DIRECTORY.

    tls.properties there turns on mutual TLS with them. The keys are not encrypted and the authority
    is not protected: use these files for tests only.

    \b
    Examples
        pyromq tls make-test-certs certs
        pyromq tls make-test-certs certs --host broker-1 --host 10.0.0.1
    """
    if not force and (existing := _existing(directory)):
        raise click.ClickException(f"{existing} exists: choose another directory, or use --force")
    try:
        paths = make_test_certificates(directory, hosts, days=days)
    except (TlsError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
    for path in paths:
        click.echo(path)
    ca, cert, key = (directory / name for name in ("ca.pem", "client.pem", "client.key"))
    click.echo(
        f"Servers: tls.config.file={paths[-1]}\n"
        f"Clients: pyromq send --tls-ca {ca} --tls-cert {cert} --tls-key {key} ..."
    )


def _existing(directory: Path) -> Path | None:
    found = (directory / name for name in ("ca.key", "server.key", "client.key", "tls.properties"))
    return next((path for path in found if path.exists()), None)
