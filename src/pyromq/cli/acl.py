"""`pyromq acl`: make the files of access control, and check them.

`init` writes an administrator, a peer account for brokers and an example, with random secrets, and
prints what to put into the servers' files. `check` reads the files as a server would.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import click

from pyromq.acl.files import ACCOUNTS, PRIVATE_MODE, AclFileError, AclFiles, dump
from pyromq.base.atomic_file import write_file

#: Random bytes of a secret key.
_SECRET_BYTES: Final = 24

_NEXT: Final = """
Put this into the file of each broker:
  aclEnable=true
  aclMode=strict
  rocketmqHome={home}
  replicationAccessKey={broker}
  replicationSecretKey=${{PYROMQ_BROKER_SECRET}}

and into the file of each NameServer:
  aclEnable=true
  rocketmqHome={home}

Start brokers with the secret of account {broker} in the environment variable
PYROMQ_BROKER_SECRET. Tools sign as {admin}: `pyromq` takes ROCKETMQ_ACCESS_KEY and
ROCKETMQ_SECRET_KEY, mqadmin reads {tools}."""


@click.group()
def acl() -> None:
    """Make and check the files of access control."""


@acl.command()
@click.argument("home", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Replace existing files; the old ones stay as .bak.")
def init(home: Path, force: bool) -> None:
    """Write a strict set of accounts below HOME, with random secrets.

    HOME is the value of rocketmqHome. The files are HOME/conf/plain_acl.yml and
    HOME/conf/tools.yml; only their owner can read them.

    \b
    Examples
        pyromq acl init /etc/pyromq
        pyromq acl check /etc/pyromq --strict
    """
    home = home.absolute()
    files = AclFiles(home, strict=True)
    tools = home / "conf" / "tools.yml"
    for path in (files.default, tools):
        if path.exists() and not force:
            raise click.ClickException(f"{path} exists; replace it with --force")
    admin, broker = "pyromq-admin", "pyromq-broker"
    admin_secret = secrets.token_urlsafe(_SECRET_BYTES)
    accounts = [
        {"accessKey": admin, "secretKey": admin_secret, "admin": True},
        {"accessKey": broker, "secretKey": secrets.token_urlsafe(_SECRET_BYTES), "peer": True},
        {
            "accessKey": "example-app",
            "secretKey": secrets.token_urlsafe(_SECRET_BYTES),
            "admin": False,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "DENY",
            "topicPerms": ["example-topic=PUB|SUB"],
            "groupPerms": ["example-group=SUB"],
        },
    ]
    try:
        files.write(files.default, {ACCOUNTS: accounts})
        keys = {"accessKey": admin, "secretKey": admin_secret}
        write_file(tools, dump(keys), mode=PRIVATE_MODE, backup=True)
    except (AclFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"wrote {files.default} and {tools}")
    click.echo(_NEXT.format(home=home, admin=admin, broker=broker, tools=tools))


@acl.command()
@click.argument("home", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--strict", is_flag=True, help="Check by the rules of aclMode=strict.")
def check(home: Path, strict: bool) -> None:
    """Check the files below HOME as a server would; the exit code is 1 for bad ones.

    \b
    Examples
        pyromq acl check /etc/pyromq --strict
    """
    files = AclFiles(home.absolute(), strict=strict)
    try:
        rules = files.load()
    except (AclFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for warning in rules.warnings:
        click.echo(f"warning: {warning}", err=True)
    administrators = sum(account.is_admin for account in rules.accounts.values())
    peers = sum(account.is_peer for account in rules.accounts.values())
    click.echo(
        f"{len(files.paths())} files, {len(rules.accounts)} accounts, {administrators} of them "
        f"administrators, {peers} peers, {len(rules.global_white)} entries in global white lists"
    )
