"""Where the brokers of `pyromq standalone` keep their data, and their names and ports.

| | one broker | several brokers |
| --- | --- | --- |
| directory | DATA | DATA/broker-0, DATA/broker-1, ... |
| name | brokerName, or the host name | broker-0, ..., or brokerName-0, ... |
| port | PORT | PORT, PORT + 4, PORT + 8, ... |
| metrics | metricsPromExporterPort | that port, the next one, ...; then that of the NameServer |

Replicas have the name of their broker. Those of broker 0 are in DATA/broker-0-replica-1 and so on,
also if the broker itself is in DATA. Their ports follow those of the brokers. A place says nothing
about the role: a replica may have been promoted (`cli.brokers.roles`).

The nodes of a raft group are in DATA/raft-n0, DATA/raft-n1 and so on, with one name. The raft port
of a node is the one above its port, where other brokers have replication.

Invariants
1. A name belongs to a directory, whatever the number of brokers: consumers that keep offsets by
   broker name find their messages again. So a store in DATA itself, from a start with one
   broker, becomes the first of several and keeps its name; and a single broker serves
   DATA/broker-0 if that is the only store.
2. No data is moved, and no messages are left out: a start that would not serve every store below
   DATA is refused. That includes replicas, because a promoted one has messages of its own.

`cli.standalone` calls this on the main thread before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from pyromq.protocol.message.message_id import format_address
from pyromq.remoting.server import bound_socket

#: More brokers than this on one machine are a typing error: each wants a core of its own.
MAX_BROKERS: Final = 64
MAX_REPLICAS: Final = 8
MAX_NODES: Final = 9
#: Distance between the ports of two brokers. A broker uses its port, the one two below it (Java's
#: VIP channel) and the one above it (replication).
PORT_DISTANCE: Final = 4
_HIGHEST_PORT: Final = 65535
_NUMBERED: Final = re.compile("broker-(0|[1-9][0-9]{0,8})(?:-replica-([1-9][0-9]{0,8}))?")
_RAFT_NODE: Final = re.compile("raft-n(0|[1-9][0-9]{0,8})")
_RAFT_NAME: Final = "broker-0"
#: Settings that `--raft` makes for each node.
_RAFT_SETTINGS: Final = ("dLegerPeers", "dLegerSelfId", "storePathDLedgerCommitLog")
#: Settings with which several brokers would write the same files.
_ONE_STORE_ONLY: Final = ("storePathCommitLog", "readOnlyCommitLogStorePaths")


class Place(NamedTuple):
    """The identity of one broker, as settings."""

    #: None for the name that the broker has without --brokers.
    name: str | None
    directory: Path
    port: int
    #: The broker's number, and which of its replicas this is: 0 for the broker itself.
    number: int = 0
    replica: int = 0
    #: The settings of a node of a raft group.
    raft: Mapping[str, str] = {}
    #: None for the port of the settings.
    metrics_port: int | None = None

    def properties(self) -> dict[str, str]:
        """Return the settings that only this broker has."""
        table = {"storePathRootDir": str(self.directory), "listenPort": str(self.port), **self.raft}
        if self.metrics_port is not None:
            table["metricsPromExporterPort"] = str(self.metrics_port)
        return table if self.name is None else {**table, "brokerName": self.name}


def with_metrics_ports(places: Sequence[Place], first: int) -> list[Place]:
    """Give each broker a port for metrics of its own: `first`, the next one, and so on.

    Port 0 stays, for any free port. Raises click.ClickException if there are not enough.
    """
    if not first:
        return list(places)
    if first + len(places) > _HIGHEST_PORT:
        raise click.ClickException(
            f"metricsPromExporterPort={first} leaves no ports for {len(places)} brokers and the "
            "NameServer; choose a lower one"
        )
    return [place._replace(metrics_port=first + index) for index, place in enumerate(places)]


def plan(
    count: int,
    root: Path,
    port: int,
    properties: Mapping[str, str],
    namesrv_port: int,
    *,
    replicas: int = 0,
) -> list[Place]:
    """Return the places of `count` brokers below `root`, the first at `port`, then of replicas.

    `properties` are the settings of all brokers. Raises click.ClickException if the brokers would
    share files or ports, or would leave out a store below `root`.
    """
    brokers = _directories(count, root)
    directories = {(number, 0): directory for number, directory in enumerate(brokers)} | {
        (number, replica): root / f"broker-{number}-replica-{replica}"
        for number in range(count)
        for replica in range(1, replicas + 1)
    }
    _refuse_unserved(list(directories.values()), root, count, replicas)
    if len(directories) > 1:
        option = f"--replicas {replicas}" if replicas else f"--brokers {count}"
        for key in _ONE_STORE_ONLY:
            if key in properties:
                raise click.ClickException(
                    f"{key} cannot be combined with {option}: the brokers would write "
                    f"the same files; remove it, and choose their directory with --data"
                )
        _check_ports(len(directories), port, namesrv_port)
    prefix = properties.get("brokerName", "broker")
    return [
        Place(
            None if brokers[number] == root else f"{prefix}-{number}",
            directory,
            port + index * PORT_DISTANCE if port else 0,
            number,
            replica,
        )
        for index, ((number, replica), directory) in enumerate(directories.items())
    ]


def plan_raft(
    count: int,
    root: Path,
    host: str,
    port: int,
    properties: Mapping[str, str],
    namesrv_port: int,
) -> list[Place]:
    """Return the places of the nodes of a raft group below `root`, the first at `port`.

    They reach each other at `host`. Raises click.ClickException as `plan` does, and if the group
    in `root` has another number of nodes.
    """
    directories = [root / f"raft-n{number}" for number in range(count)]
    for key in (*_ONE_STORE_ONLY, *_RAFT_SETTINGS):
        if key in properties:
            raise click.ClickException(f"{key} cannot be combined with --raft {count}: remove it")
    _refuse_other_stores(root, count)
    _check_ports(count, port, namesrv_port)
    ports = [port + index * PORT_DISTANCE if port else 0 for index in range(count)]
    raft_ports = [each + 1 for each in ports] if port else _free_ports(host, count)
    name = properties.get("brokerName", _RAFT_NAME)
    addresses = [format_address(host, each) for each in raft_ports]
    peers = ";".join(f"n{number}-{address}" for number, address in enumerate(addresses))
    return [
        Place(
            name,
            directory,
            ports[number],
            number,
            raft={
                "enableDLegerCommitLog": "true",
                "dLegerGroup": properties.get("dLegerGroup", name),
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
            },
        )
        for number, directory in enumerate(directories)
    ]


def _refuse_other_stores(root: Path, count: int) -> None:
    """Raise click.ClickException if `root` has messages that the group would not serve."""
    paths = list(root.iterdir()) if root.is_dir() else []
    others = [root] if _has_messages(root) else []
    others += [path for path in paths if _NUMBERED.fullmatch(path.name) and _has_messages(path)]
    if others:
        raise click.ClickException(
            f"a raft group would not serve the messages in {_listed(others)}: "
            "choose another directory with --data, or move what you do not need elsewhere"
        )
    size = max(_raft_nodes(root), default=-1) + 1
    if size and size != count:
        raise click.ClickException(
            f"the raft group in {root} has {size} nodes, and another number could lose messages: "
            f"start with --raft {size}, or choose another directory with --data"
        )


def _raft_nodes(root: Path) -> dict[int, Path]:
    """Return the directories of a raft group's nodes below `root` by their numbers."""
    return {
        int(found[1]): path
        for path in (root.iterdir() if root.is_dir() else ())
        if (found := _RAFT_NODE.fullmatch(path.name)) and _has_entries(path)
    }


def _has_entries(directory: Path) -> bool:
    return any(path.is_file() for path in directory.glob("dledger-*/data/*"))


def _free_ports(host: str, count: int) -> list[int]:
    """Return ports that are free now; the nodes bind them a moment later."""
    held = [bound_socket(host, 0, is_chosen=False) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()


def _directories(count: int, root: Path) -> list[Path]:
    directories = [root / f"broker-{number}" for number in range(count)]
    if _is_store(root) or (count == 1 and not _is_store(directories[0])):
        directories[0] = root
    return directories


def _is_store(directory: Path) -> bool:
    return (directory / "commitlog").exists() or (directory / "config").exists()


def _refuse_unserved(directories: list[Path], root: Path, count: int, replicas: int) -> None:
    """Raise click.ClickException if a store with messages is not among `directories`."""
    unserved = {
        (int(found[1]), int(found[2] or 0)): path
        for path in (root.iterdir() if root.is_dir() else ())
        if (found := _NUMBERED.fullmatch(path.name)) and path not in directories
        if _has_messages(path)
    }
    nodes = _raft_nodes(root)
    if nodes:
        raise click.ClickException(
            f"the messages in {_listed(list(nodes.values()))} are of a raft group: start with "
            f"--raft {max(nodes) + 1}, or choose another directory with --data"
        )
    if not unserved:
        return
    names = ", ".join(str(unserved[key]) for key in sorted(unserved))
    needed = max(count, *(number + 1 for number, _ in unserved))
    needed_replicas = max(replicas, *(replica for _, replica in unserved))
    if (0, 0) in unserved and directories[0] == root:
        advice = f"{root} itself holds the store of the first broker; move one of them elsewhere"
    elif needed > MAX_BROKERS or needed_replicas > MAX_REPLICAS:
        advice = "move what you do not need elsewhere"
    else:
        options = [f"--brokers {needed}"] if needed > 1 else []
        options += [f"--replicas {needed_replicas}"] if needed_replicas else []
        advice = f"start with {' '.join(options)}, or move what you do not need elsewhere"
    brokers = "1 broker" if count == 1 else f"{count} brokers"
    if replicas or needed_replicas:
        brokers += f" with {replicas} replicas each" if replicas else " without replicas"
    raise click.ClickException(f"{brokers} would not serve the messages in {names}: {advice}")


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, sorted(paths)))


def _has_messages(directory: Path) -> bool:
    log = directory / "commitlog"
    return log.is_dir() and any(log.iterdir())


def _check_ports(count: int, port: int, namesrv_port: int) -> None:
    if not port:
        return
    ports = range(port, port + count * PORT_DISTANCE, PORT_DISTANCE)
    if ports[-1] + 1 > _HIGHEST_PORT:
        raise click.ClickException(
            f"{count} brokers from port {port} on need ports up to {ports[-1] + 1}, but "
            f"{_HIGHEST_PORT} is the highest: choose a lower one with --broker-port"
        )
    for each in ports:
        if namesrv_port in (each - 2, each, each + 1):
            raise click.ClickException(
                f"the broker at port {each} needs port {namesrv_port}, which is the NameServer's: "
                "choose another one with --broker-port or --namesrv-port"
            )
