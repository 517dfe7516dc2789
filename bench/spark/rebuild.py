"""Measures how fast `rebuild` writes consume queues and indexes, by cores and stores.

    python -m bench.spark.rebuild --mib 1024 --cores 1 2 --stores 1 2 4

The table also shows the broker's own recovery of the same log, with its CPU time, because recovery
uses more than one core as well. Stores are written once; copies share the log's files. Used by
`make bench-spark`, and by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.recovery import write_killed_store
from pyromq.protocol.message.message_id import encode_host
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore

_TICKS = os.sysconf("SC_CLK_TCK")
_WAIT_SECONDS = 300.0


def measure_rebuild(
    mib: int = 1024,
    cores: Sequence[int] | None = None,
    stores: Sequence[int] = (1, 2, 4),
    directory: Path | None = None,
) -> dict[str, Any]:
    """Return the figures of all combinations, and a table as `text`."""
    cores = cores or sorted({1, os.cpu_count() or 1})
    data = Path(tempfile.mkdtemp(prefix="bench-rebuild-", dir=directory))
    try:
        messages, size = write_killed_store(data / "written", mib * 1024 * 1024)
        figures: dict[str, Any] = {
            "log_mb": size / 1e6,
            "messages": messages,
            "recovery": _measure_recovery(data, size),
            "rebuild": [],
        }
        for count in cores:
            figures["rebuild"] += _measure_cores(data, size, count, stores)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    figures["text"] = render(figures)
    return figures


def render(figures: dict[str, Any]) -> str:
    """Return the figures as a table."""
    recovery = figures["recovery"]
    lines = [
        f"rebuild of logs of {figures['log_mb']:,.0f} MB, {figures['messages']:,} messages each",
        f"{'':30}{'seconds':>10}{'MB/s':>10}{'MB/s a core':>14}{'MB per CPU s':>14}",
    ]
    lines.append(
        f"{'recovery of the broker itself':30}{recovery['seconds']:>10.2f}"
        f"{recovery['rate']:>10,.0f}{'':14}{recovery['per_cpu_second']:>14,.0f}"
    )
    for row in figures["rebuild"]:
        name = f"rebuild, {row['stores']} stores, {row['cores']} cores"
        lines.append(
            f"{name:30}{row['seconds']:>10.2f}{row['rate']:>10,.0f}{row['per_core']:>14,.0f}"
            f"{row['per_cpu_second']:>14,.0f}"
        )
    return "\n".join(lines) + "\n"


def _measure_recovery(data: Path, size: int) -> dict[str, float]:
    """Time a broker's start on the killed store until every key is indexed."""
    root = _copy(data, 0)
    store = MessageStore(
        MessageStoreConfig(store_path_root_dir=str(root)), encode_host("127.0.0.1", 10911)
    )
    before, began = _own_cpu(), time.perf_counter()
    store.start()
    try:
        limit = began + _WAIT_SECONDS
        while store.dispatch_behind and time.perf_counter() < limit:
            time.sleep(0.01)
        seconds = time.perf_counter() - began
    finally:
        store.stop()
    # Stop first: the CPU time of child processes is known only after they exit.
    cpu = _own_cpu() - before
    shutil.rmtree(root)
    return {"seconds": seconds, "rate": size / 1e6 / seconds, "per_cpu_second": size / 1e6 / cpu}


def _measure_cores(
    data: Path, size: int, cores: int, stores: Sequence[int]
) -> list[dict[str, float]]:
    from pyromq.spark.stores.rebuild import rebuild_stores
    from pyromq.spark.session import build_session

    session = build_session(f"local[{cores}]", app_name="bench-rebuild")
    rows = []
    try:
        _warm_up(session, data)
        for count in stores:
            roots = [_copy(data, number) for number in range(count)]
            configs = [MessageStoreConfig(store_path_root_dir=str(root)) for root in roots]
            before, began = _children_cpu(), time.perf_counter()
            made = rebuild_stores(session, configs)
            seconds = time.perf_counter() - began
            cpu = _children_cpu() - before
            assert all(result.log_end == size for result in made), made
            rate = count * size / 1e6 / seconds
            rows.append(
                {
                    "stores": count,
                    "cores": cores,
                    "seconds": seconds,
                    "rate": rate,
                    "per_core": rate / cores,
                    "per_cpu_second": count * size / 1e6 / cpu,
                }
            )
            for root in roots:
                shutil.rmtree(root)
    finally:
        session.stop()
    return rows


def _warm_up(session: Any, data: Path) -> None:
    """Start Python workers with all imports, and let the JVM compile."""
    from pyromq.spark.stores.rebuild import rebuild_stores

    root = data / "warm-up"
    write_killed_store(root, 64 * 1024 * 1024)
    for _ in range(2):
        rebuild_stores(
            session, [MessageStoreConfig(store_path_root_dir=str(root))], part_size=4 * 1024 * 1024
        )
    shutil.rmtree(root)


def _copy(data: Path, number: int) -> Path:
    """Create a store that shares the written log's files, which are only read."""
    root = data / f"store-{number}"
    shutil.copytree(
        data / "written", root, copy_function=os.link, ignore=shutil.ignore_patterns("abort")
    )
    (root / "abort").touch()
    return root


def _own_cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _children_cpu() -> float:
    """Return the CPU time of Python descendants, without the JVM between them."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (path / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has just exited
        fields = rest.split()
        process = int(path.name)
        parents[process] = int(fields[1])
        if "python" in name:
            # Include its children that have exited.
            used[process] = sum(map(int, fields[11:15])) / _TICKS
    own = os.getpid()

    def is_below(process: int) -> bool:
        while process > 1:
            process = parents.get(process, 0)
            if process == own:
                return True
        return False

    return sum(cpu for process, cpu in used.items() if is_below(process))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--cores", type=int, nargs="*")
    parser.add_argument("--stores", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure_rebuild(options.mib, options.cores, options.stores)
    print(figures.pop("text"))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
