"""A broker with access control, and requests of its accounts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyromq.acl.settings import AclMode
from pyromq.broker.broker import Broker
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE

#: Alice may use T and g, and send to P; bob may do nothing; a server signs as the peer.
ACCOUNTS = """\
accounts:
- accessKey: admin_key
  secretKey: admin_secret
  admin: true
- accessKey: alice_key
  secretKey: alice_secret
  topicPerms: [T=PUB|SUB, P=PUB]
  groupPerms: [g=SUB]
- accessKey: bobby_key
  secretKey: bobby_secret
- {accessKey: peers_key, secretKey: peers_secret, peer: true}
"""
ADMIN, ALICE, BOB, PEER = "admin_key", "alice_key", "bobby_key", "peers_key"
SECRETS = {
    ADMIN: "admin_secret",
    ALICE: "alice_secret",
    BOB: "bobby_secret",
    PEER: "peers_secret",
}


class Guarded:
    """A running broker with access control, and a client without it."""

    def __init__(self, broker: Broker, home: Path, client: RemotingClient) -> None:
        self.broker = broker
        self.home = home
        self.client = client

    async def ask(self, request: RemotingCommand, account: str | None = ALICE) -> RemotingCommand:
        """Send a request, signed by an account."""
        if account is not None:
            acl.sign(request.ext_fields, request.body, account, SECRETS[account])
        return await self.client.request(self.broker.address, request, timeout=DEADLINE)

    @property
    def audit(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        path = self.home / "store/audit/audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_accounts(home: Path, text: str = ACCOUNTS) -> Path:
    """Write the default file of a server."""
    path = home / "conf/plain_acl.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


@asynccontextmanager
async def guarded_broker(
    home: Path, mode: AclMode = AclMode.compatible, accounts: str = ACCOUNTS, **settings: Any
) -> AsyncIterator[Guarded]:
    """Run a broker with access control below `home`."""
    write_accounts(home, accounts)
    config = local_broker(acl_enable=True, acl_mode=mode, rocketmq_home=str(home), **settings)
    broker, client = Broker(config, small_store(home / "store")), RemotingClient()
    await broker.start()
    try:
        yield Guarded(broker, home, client)
    finally:
        await client.close()
        await broker.stop()
