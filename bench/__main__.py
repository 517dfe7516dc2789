"""`make bench`: compare Apache RocketMQ 4.9.7 and pyromq under the same load.

Each round starts the servers one after the other on an empty store. It measures the time until a
server accepts a send, warms the server up, runs the cases from a separate process, and stops the
server. Figures are medians over the rounds. Full runs are saved in .cache/bench-results, with
--baseline in bench/results. The exit status is 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console

from bench import client, cold, connections, delay
from bench.cases import CASES, SYNC, WARM_UP, Case, Kind
from bench.frames import BATCH_SIZE, PULL_SIZE, QUEUES
from bench.load import LoadOrder
from bench.process import memory_mib, syncs_per_second
from bench.recovery import DEFAULT_SIZE, QUICK_SIZE, measure_recovery
from bench.report import ServerRun, environment, is_committed, medians, render, save
from bench.servers import (
    JavaServer,
    PyromqServer,
    Server,
    ServerError,
    create_topic,
    indexed_keys,
    stored_per_queue,
    wait_for_first_send,
)

REPOSITORY = Path(__file__).resolve().parents[1]
#: Not in the system's temporary directory, which may be in memory.
DATA = REPOSITORY / ".cache" / "bench"
_INDEX_LIMIT_SECONDS = 15.0
#: Not run by default: these cases need minutes and gigabytes of disk.
_RECOVERY = "recovery"
_COLD = "cold"
_DELAY = "delay"
_LOAD = "load"
_CLIENT = "client"


def main() -> int:
    """Measure, print and save; return the exit status."""
    options = _options()
    console = Console(stderr=True, soft_wrap=True)
    by_name = {
        _RECOVERY: _measure_recovery,
        _COLD: _measure_cold,
        _DELAY: _measure_delay,
        _LOAD: _measure_load,
        _CLIENT: _measure_clients,
    }
    measure = by_name.get(options.cases[0])
    if measure is None:
        return _compare(options, console)
    text, is_enough = measure(options, console)
    sys.stdout.write(text)
    return 0 if is_enough else 1


def _compare(options: argparse.Namespace, console: Console) -> int:
    """Run the throughput cases on both servers."""
    settings = {"flushDiskType": "SYNC_FLUSH"} if options.cases == [SYNC.name] else {}
    cases = [case for case in (*CASES, SYNC) if case.name in options.cases]
    facts = environment(
        REPOSITORY,
        rounds=options.rounds,
        messages=options.messages,
        warm_up=options.warm_up,
    )
    if options.baseline and not is_committed(facts):
        raise SystemExit("bench: commit src and bench first: a baseline must be reproducible")
    servers = _servers(options, settings)
    runs: dict[str, list[ServerRun]] = {server.name: [] for server in servers}
    for number in range(options.rounds):
        for server in servers:
            console.print(f"round {number + 1} of {options.rounds}: {server.name}")
            runs[server.name].append(_measure(server, cases, options, console))
    figures = {name: medians(rounds) for name, rounds in runs.items()}
    table, missed = render(figures, cases, facts)
    sys.stdout.write(table)
    if settings:
        sys.stdout.write(
            f"The disk alone manages {syncs_per_second(DATA):,.0f} fdatasync/s of 20 kB each.\n"
        )
    if options.save:
        content = {"environment": facts, "medians": figures, "rounds": runs}
        for path in save(REPOSITORY, "broker", content, table, is_baseline=options.baseline):
            console.print(f"saved {path.relative_to(REPOSITORY)}")
    return 1 if missed else 0


def _servers(
    options: argparse.Namespace, settings: Mapping[str, str], java_log_level: str = "WARN"
) -> list[Server]:
    """Return the selected servers, installed."""
    both: tuple[Server, ...] = (JavaServer(java_log_level, settings), PyromqServer(settings))
    servers = [server for server in both if options.only in (None, server.name)]
    for server in servers:
        server.prepare()
    return servers


def _measure_recovery(options: argparse.Namespace, console: Console) -> tuple[str, bool]:
    servers = _servers(options, {}, java_log_level="INFO")  # at which Java logs its recovery
    size = options.recovery_mib * 1024 * 1024
    return measure_recovery(servers, DATA, size, options.rounds, console)


def _measure_cold(options: argparse.Namespace, console: Console) -> tuple[str, bool]:
    size = options.cold_mib * 1024 * 1024
    servers = _servers(options, cold.SETTINGS)
    return cold.measure_cold(servers, DATA, size, options.rounds, console)


def _measure_delay(options: argparse.Namespace, console: Console) -> tuple[str, bool]:
    seconds = delay.QUICK_SECONDS if options.quick else delay.SECONDS
    return delay.measure_delay(_servers(options, {}), DATA, seconds, options.rounds, console)


def _measure_load(options: argparse.Namespace, console: Console) -> tuple[str, bool]:
    amount = connections.QUICK if options.quick else connections.FULL
    return connections.measure_load(DATA, amount, console)


def _measure_clients(options: argparse.Namespace, console: Console) -> tuple[str, bool]:
    broker = (JavaServer if options.only == "java" else PyromqServer)(settings=client.SETTINGS)
    broker.prepare()
    amount = client.QUICK if options.quick else client.FULL
    return client.measure_clients(broker, DATA, amount, options.rounds, console)


def _options() -> argparse.Namespace:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run briefly and save nothing.")
    parser.add_argument("--only", choices=("java", "pyromq"), help="Measure one server only.")
    parser.add_argument(
        "--cases",
        default=",".join(names),
        help=f"Run these cases, separated by commas: {', '.join(names)}; or one of {_RECOVERY}, "
        f"{_COLD}, {_DELAY}, {_LOAD}, {_CLIENT} and {SYNC.name} by itself.",
    )
    parser.add_argument(
        "--recovery-mib", type=int, help="Set the log size of the recovery case (4096)."
    )
    parser.add_argument("--cold-mib", type=int, help="Set the backlog of the cold case (1024).")
    parser.add_argument(
        "--messages", type=int, help="Set the number of messages per case (1,000,000)."
    )
    parser.add_argument("--warm-up", type=int, help="Set the number of warm-up sends (500,000).")
    parser.add_argument("--rounds", type=int, help="Set the number of rounds (3).")
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="Save a full run as this kind of machine's baseline in bench/results.",
    )
    options = parser.parse_args()
    options.cases = options.cases.split(",")
    unknown = set(options.cases) - set(names)
    if options.cases in ([_RECOVERY], [_COLD], [_DELAY], [_LOAD], [_CLIENT], [SYNC.name]):
        unknown.clear()
    if options.recovery_mib is None:
        options.recovery_mib = (QUICK_SIZE if options.quick else DEFAULT_SIZE) // 1024**2
    if options.cold_mib is None:
        options.cold_mib = (cold.QUICK_SIZE if options.quick else cold.DEFAULT_SIZE) // 1024**2
    if options.cold_mib < cold.QUICK_SIZE // 1024**2:
        parser.error(f"--cold-mib needs at least {cold.QUICK_SIZE // 1024**2}")
    if unknown:
        parser.error(f"unknown cases {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.messages is None:
        options.messages = 100_000 if options.quick else 1_000_000
    if options.warm_up is None:
        options.warm_up = 100_000 if options.quick else 500_000
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    if options.messages < 10_000 or options.warm_up < 10_000 or options.rounds < 1:
        parser.error("--messages and --warm-up need at least 10,000, --rounds at least 1")
    options.save = not options.quick and options.only is None and len(options.cases) == len(names)
    if options.baseline and not options.save:
        parser.error("--baseline needs a full run: without --quick, --only and --cases")
    return options


def _measure(
    server: Server, cases: list[Case], options: argparse.Namespace, console: Console
) -> ServerRun:
    data = DATA / f"{server.name}-{os.getpid()}"
    try:
        began = time.perf_counter()
        pid = server.start(data)
        wait_for_first_send(server, pid)
        run: ServerRun = {"": {"startup_s": time.perf_counter() - began}}
        for topic in {case.topic for case in (WARM_UP, *cases)}:
            create_topic(server.port, topic)
        warm = _load(WARM_UP, server.port, pid, options.warm_up, 0, 0)
        sent = 1 + _check_stored(server.port, WARM_UP, warm, 0)
        for case in cases:
            messages = _whole_frames(case, int(options.messages * case.scale))
            lead_in = _whole_frames(case, messages // 10)
            stored = min(stored_per_queue(server.port, WARM_UP.topic))
            figures = _load(case, server.port, pid, messages, lead_in, stored)
            if case.kind is not Kind.PULL:
                sent += _check_stored(server.port, case, figures, lead_in)
            run[case.name] = {**figures, **memory_mib(pid)}
            console.print(
                f"  {case.title}: {figures['rate']:,.0f} messages/s, "
                f"{figures['cpu_us']:.2f} µs of CPU each, p99 {figures['p99_ms']:.2f} ms"
            )
        run[""] |= memory_mib(pid)
        _check_indexed(server.store, sent)
        return run
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)
        os.sync()  # the next server must not pay for this one's dirty pages


def _load(
    case: Case, port: int, pid: int, messages: int, lead_in: int, stored: int
) -> dict[str, float]:
    order = LoadOrder(case.name, "127.0.0.1", port, pid, messages, lead_in, stored)
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", orjson.dumps(asdict(order)).decode()],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise ServerError(f"case {case.name} failed: see the load generator's error above")
    figures: dict[str, float] = orjson.loads(done.stdout)
    return figures


def _check_stored(port: int, case: Case, figures: dict[str, float], lead_in: int) -> int:
    """Check that every acknowledged message is in a consume queue exactly once."""
    accepted = int(figures["messages"] + lead_in - figures["refused_in_lead_in"])
    stored = sum(stored_per_queue(port, case.topic))
    if stored != accepted:
        raise ServerError(f"{case.topic}: {accepted} sends were acknowledged, {stored} are stored")
    return stored


def _check_indexed(store: Path, messages: int) -> None:
    """Check that both keys of each message, its own and the producer's, are indexed."""
    expected = messages * 2
    deadline = time.monotonic() + _INDEX_LIMIT_SECONDS
    while (found := indexed_keys(store)) < expected:
        if time.monotonic() > deadline:
            raise ServerError(f"the key index holds {found} keys of {expected}")
        time.sleep(0.1)


def _whole_frames(case: Case, messages: int) -> int:
    size = {Kind.SEND: 1, Kind.BATCH: BATCH_SIZE, Kind.PULL: PULL_SIZE}[case.kind] * QUEUES
    return max(1, messages // size) * size


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(f"bench: {error}")
