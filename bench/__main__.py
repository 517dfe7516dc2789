"""`make bench`: compare Apache RocketMQ 4.9.7, pyromq and others under the same load.

The servers run side by side and take turns in every case; a separate process makes the load. Each
server is warmed up until its CPU per message has stopped falling. Figures are medians over the
rounds, with their range. Runs are saved in .cache/bench-results, with --baseline in bench/results.
The exit status is 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from bench import acl, client, cold, connections, delay, metrics, replication, tls
from bench.ack import AckServer
from bench.cases import (
    ACK,
    BASE,
    CATCH_UP,
    CONTENDERS,
    FAIL_OVER,
    JAVA,
    KAFKA,
    NATS,
    PURE,
    PYROMQ,
    RAFT,
    RECOVERY,
    REPLICATED,
    START,
    THROUGHPUT,
    Case,
)
from bench.compare import Amount, measure_cases, measure_starts
from bench.kafka import KafkaServer
from bench.nats import NatsServer
from bench.page import write_page
from bench.process import syncs_per_second
from bench.raft import Group, java_group, measure_fail_overs, pyromq_group
from bench.recovery import DEFAULT_SIZE, QUICK_SIZE, measure_recovery
from bench.replication import Pair, java_pair, measure_catch_up, pyromq_pair
from bench.report import Rounds, environment, is_committed, merged_with_baseline, render, save
from bench.servers import (
    REPOSITORY,
    JavaServer,
    NotInstalledError,
    PyromqServer,
    Server,
    ServerError,
    System,
)

#: Not in the system's temporary directory, which may be in memory.
DATA = REPOSITORY / ".cache" / "bench"
_SYNC_SETTINGS = {"flushDiskType": "SYNC_FLUSH"}
_CLIENT = "client"
#: These have their own tables and bounds, and run by themselves.
_ALONE = ("acl", "cold", "delay", "load", "metrics")
_DEFAULT_ONLY = (JAVA, PYROMQ, NATS, KAFKA, ACK)
_Brokers = TypeVar("_Brokers", Pair, Group)


def main() -> int:
    """Measure, print and save; return the exit status."""
    options = _options()
    console = Console(stderr=True, soft_wrap=True)
    if options.page:
        for path in write_page(REPOSITORY):
            console.print(f"wrote {path.relative_to(REPOSITORY)}")
        return 0
    if options.cases[0] in _ALONE:
        text, is_enough = _measure_alone(options, console)
        sys.stdout.write(text)
        return 0 if is_enough else 1
    facts = environment(
        REPOSITORY,
        rounds=options.rounds,
        messages=options.messages,
        max_slices=options.max_slices,
    )
    if options.baseline and not is_committed(facts):
        raise SystemExit("bench: commit src and bench first: a baseline must be reproducible")
    notes: list[str] = []
    rounds = _measure(options, notes, console)
    text, missed = render(rounds, facts)
    text += "".join(f"NOTE  {note}\n" for note in notes)
    sys.stdout.write(text)
    if not options.quick:
        _save(options, facts, rounds, text, console)
    return 1 if missed else 0


def _measure(options: argparse.Namespace, notes: list[str], console: Console) -> Rounds:
    """Run the chosen cases; add what is missing to the notes."""
    rounds: Rounds = {}
    amount = _amount(options)
    systems = _Systems(options, notes, console)
    chosen = [case for case in THROUGHPUT if case.name in options.cases]
    plain = [case for case in chosen if not case.is_sync and not case.is_tls]
    synced = [case for case in chosen if case.is_sync]
    encrypted = [case for case in chosen if case.is_tls]
    if START in options.cases:
        rounds |= measure_starts(systems.brokers_of({}), DATA, amount.starts, console)
    if plain:
        rounds |= measure_cases(systems.all_of({}, plain), plain, DATA, amount, console)
    if synced:
        servers = systems.all_of(_SYNC_SETTINGS, synced)
        rounds |= measure_cases(servers, synced, DATA, amount, console)
        speed = syncs_per_second(DATA)
        notes.append(f"the disk alone manages {speed:,.0f} fdatasync/s of 20 kB each")
    if encrypted:
        servers = systems.all_of(tls.SETTINGS, encrypted)
        rounds |= measure_cases(servers, encrypted, DATA, amount, console)
    if REPLICATED.name in options.cases:
        rounds |= measure_cases(systems.pairs(), [REPLICATED], DATA, amount, console)
    if {REPLICATED.name, CATCH_UP} & set(options.cases):
        size = options.catch_up_mib * 1024 * 1024
        rounds |= measure_catch_up(systems.pairs(), DATA, size, options.rounds, console)
    if RAFT.name in options.cases:
        rounds |= measure_cases(systems.groups(), [RAFT], DATA, amount, console)
    if {RAFT.name, FAIL_OVER} & set(options.cases):
        rounds |= measure_fail_overs(systems.groups(), DATA, options.starts, console)
    if RECOVERY in options.cases:
        brokers = systems.brokers_of({}, java_log_level="INFO")  # at which Java logs its recovery
        size = options.recovery_mib * 1024 * 1024
        rounds |= measure_recovery(brokers, DATA, size, options.rounds, console)
    if _CLIENT in options.cases:
        broker = PyromqServer(client.SETTINGS)
        size_of_run = client.QUICK if options.quick else client.FULL
        trees = {PYROMQ: REPOSITORY} | ({BASE: options.base} if options.base else {})
        measured, problems = client.measure_clients(
            broker, DATA, size_of_run, options.rounds, trees, console
        )
        rounds |= measured
        notes += [f"client {name} is missing: {why}" for name, why in problems.items()]
    return rounds


class _Systems:
    """Builds and installs the chosen contenders; notes those that cannot be had."""

    def __init__(self, options: argparse.Namespace, notes: list[str], console: Console) -> None:
        self._only: list[str] = options.only
        self._base: Path | None = options.base
        self._notes = notes
        self._console = console
        self._missing: set[str] = set()

    def all_of(self, settings: Mapping[str, str], cases: Sequence[Case] = ()) -> list[System]:
        """Return the systems that take part in the cases, in the order of a round."""
        brokers: list[System] = list(self.brokers_of(settings))
        others: dict[str, Callable[[], System]] = {
            NATS: NatsServer,
            KAFKA: KafkaServer,
            ACK: AckServer,
        }
        found = brokers + [
            made()
            for name, made in others.items()
            if name in self._only and (not cases or any(name in case.contenders for case in cases))
        ]
        return [system for system in found if self._is_installed(system)]

    def brokers_of(self, settings: Mapping[str, str], java_log_level: str = "WARN") -> list[Server]:
        """Return the RocketMQ brokers among the contenders."""
        made: dict[str, Server] = {
            JAVA: JavaServer(java_log_level, settings),
            PYROMQ: PyromqServer(settings),
            PURE: PyromqServer(settings, name=PURE, is_pure=True),
        }
        if self._base is not None:
            made[BASE] = PyromqServer(settings, name=BASE, tree=self._base)
        chosen = [server for name, server in made.items() if name in self._only]
        return [server for server in chosen if self._is_installed(server)]

    def pairs(self) -> list[Pair]:
        """Return the RocketMQ brokers among the contenders, each with a replica."""
        return self._several(java_pair, pyromq_pair)

    def groups(self) -> list[Group]:
        """Return the RocketMQ brokers among the contenders, each as a raft group of three."""
        return self._several(java_group, pyromq_group)

    def _several(
        self, java: Callable[[], _Brokers], pyromq: Callable[..., _Brokers]
    ) -> list[_Brokers]:
        made: dict[str, Callable[[], _Brokers]] = {
            JAVA: java,
            PYROMQ: pyromq,
            PURE: partial(pyromq, name=PURE, is_pure=True),
        }
        if self._base is not None:
            made[BASE] = partial(pyromq, name=BASE, tree=self._base)
        chosen = [make() for name, make in made.items() if name in self._only]
        return [brokers for brokers in chosen if self._is_installed(brokers)]

    def _is_installed(self, system: System) -> bool:
        try:
            system.prepare()
        except NotInstalledError as error:
            if system.name not in self._missing:
                self._missing.add(system.name)
                line = f"{system.name} is missing: {error}"
                self._notes.append(line)
                self._console.print(line)
            return False
        return True


def _save(
    options: argparse.Namespace,
    facts: Mapping[str, object],
    rounds: Rounds,
    text: str,
    console: Console,
) -> None:
    if options.baseline:
        cases = merged_with_baseline(REPOSITORY, facts, rounds)
        text, _ = render({name: case["rounds"] for name, case in cases.items()}, facts)
    else:
        cases = {name: {"environment": facts, "rounds": each} for name, each in rounds.items()}
    content = {"environment": facts, "cases": cases}
    for path in save(REPOSITORY, "broker", content, text, is_baseline=options.baseline):
        console.print(f"saved {path.relative_to(REPOSITORY)}")


def _amount(options: argparse.Namespace) -> Amount:
    return Amount(
        options.messages, options.fill, options.rounds, options.max_slices, options.starts
    )


def _measure_alone(options: argparse.Namespace, console: Console) -> tuple[str, bool]:
    """Run a case that has its own table."""
    [name] = options.cases
    systems = _Systems(options, [], console)
    if name == "acl":
        with_java = JAVA in options.only
        return acl.measure_acl(DATA, options.messages, options.rounds, console, with_java=with_java)
    if name == "cold":
        size = options.cold_mib * 1024 * 1024
        servers = systems.brokers_of(cold.SETTINGS)
        return cold.measure_cold(servers, DATA, size, options.rounds, console)
    if name == "delay":
        seconds = delay.QUICK_SECONDS if options.quick else delay.SECONDS
        servers = systems.brokers_of({})
        return delay.measure_delay(servers, DATA, seconds, options.rounds, console)
    if name == "metrics":
        return metrics.measure_metrics(DATA, _amount(options), console)
    amount = connections.QUICK if options.quick else connections.FULL
    return connections.measure_load(DATA, amount, console)


def _options() -> argparse.Namespace:
    throughput = [case.name for case in THROUGHPUT]
    optional = [REPLICATED.name, CATCH_UP, RAFT.name, FAIL_OVER, RECOVERY, _CLIENT]
    known = [*throughput, START, *optional]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run briefly and save nothing.")
    parser.add_argument(
        "--only",
        help=f"Measure these contenders, separated by commas, out of {', '.join(CONTENDERS)} "
        f"({','.join(_DEFAULT_ONLY)}); {PURE} is pyromq with PYROMQ_PURE=1, {ACK} a program that "
        "only acknowledges.",
    )
    parser.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="Measure the pyromq of another source tree as well, such as that of a former commit.",
    )
    parser.add_argument(
        "--cases",
        default=",".join((*throughput, START)),
        help=f"Run these cases, separated by commas: {', '.join(known)}; or one of "
        f"{', '.join(_ALONE)} by itself. By default, all but {', '.join(optional)}; "
        f"{REPLICATED.name} includes {CATCH_UP}, {RAFT.name} includes {FAIL_OVER}.",
    )
    parser.add_argument(
        "--recovery-mib", type=int, help="Set the log size of the recovery case (4096)."
    )
    parser.add_argument(
        "--catch-up-mib", type=int, help="Set the log size of the catchup case (4096)."
    )
    parser.add_argument("--cold-mib", type=int, help="Set the backlog of the cold case (1024).")
    parser.add_argument(
        "--messages", type=int, help="Set the number of messages per case (1,000,000)."
    )
    parser.add_argument("--fill", type=int, help="Set the number of messages to pull (500,000).")
    parser.add_argument("--rounds", type=int, help="Set the number of rounds (3).")
    parser.add_argument(
        "--starts", type=int, help="Set the number of measured starts and kills (5)."
    )
    parser.add_argument(
        "--max-slices", type=int, help="Set the maximum number of warm-up slices (20)."
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="Save the cases of this run in this kind of machine's baseline in bench/results.",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="Measure nothing: write docs/performance.md's tables and plot from the baseline.",
    )
    options = parser.parse_args()
    options.cases = options.cases.split(",")
    if unknown := sorted(set(options.cases) - {*known, *_ALONE}):
        parser.error(f"unknown cases {', '.join(unknown)}; there are {', '.join(known)}")
    if set(options.cases) & set(_ALONE) and len(options.cases) > 1:
        parser.error(f"{', '.join(_ALONE)} run by themselves")
    options.only = options.only.split(",") if options.only else list(_DEFAULT_ONLY)
    if unknown := sorted(set(options.only) - set(CONTENDERS)):
        parser.error(f"unknown contenders {', '.join(unknown)}")
    if options.base is not None:
        options.base = options.base.resolve()
        options.only.append(BASE)
        if not (options.base / "src" / "pyromq").is_dir():
            parser.error(f"--base {options.base} has no src/pyromq")
    elif BASE in options.only:
        parser.error(f"{BASE} needs --base DIR")
    _fill_in_amounts(options, parser)
    if options.baseline and options.quick:
        parser.error("--baseline needs a full run, without --quick")
    return options


def _fill_in_amounts(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    is_quick = options.quick
    for name, quick, full in (
        ("recovery_mib", QUICK_SIZE // 1024**2, DEFAULT_SIZE // 1024**2),
        ("catch_up_mib", replication.QUICK_SIZE // 1024**2, replication.DEFAULT_SIZE // 1024**2),
        ("cold_mib", cold.QUICK_SIZE // 1024**2, cold.DEFAULT_SIZE // 1024**2),
        ("messages", 100_000, 1_000_000),
        ("fill", 100_000, 500_000),
        ("rounds", 1, 3),
        ("starts", 2, 5),
        ("max_slices", 2, 20),
    ):
        if getattr(options, name) is None:
            setattr(options, name, quick if is_quick else full)
    if options.cold_mib < cold.QUICK_SIZE // 1024**2:
        parser.error(f"--cold-mib needs at least {cold.QUICK_SIZE // 1024**2}")
    if options.messages < 10_000 or options.fill < 10_000 or options.rounds < 1:
        parser.error("--messages and --fill need at least 10,000, --rounds at least 1")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ServerError, ValueError) as error:
        sys.exit(f"bench: {error}")
