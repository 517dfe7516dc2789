from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.cli.doctor.finding import Level
from pyromq.cli.doctor.machine import examine_machine

GOOD = {
    "proc/7/limits": "Limit Soft Hard Units\nMax open files            1024   1048576   files\n",
    "proc/7/status": "Name:\tpyromq\nVmSwap:\t       0 kB\n",
    "proc/sys/vm/max_map_count": "65530\n",
    "proc/sys/vm/swappiness": "1\n",
    "proc/swaps": "Filename Type Size\n/dev/sda2 partition 1\n",
    "proc/sys/vm/dirty_background_bytes": "0\n",
    "proc/sys/vm/dirty_background_ratio": "10\n",
    "proc/sys/vm/overcommit_memory": "1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "proc/meminfo": "MemTotal:  16000000 kB\nMemAvailable:  8000000 kB\n",
}


def findings(root: Path, **options: int) -> dict[str, Level]:
    return {each.check: each.level for each in examine_machine(root, process=7, **options)}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_good_machine(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    found = findings(tmp_path)
    assert set(found.values()) == {Level.OK}
    assert set(found) == {
        "open files",
        "memory maps",
        "swap",
        "dirty pages",
        "overcommit",
        "huge pages",
        "memory",
    }


@pytest.mark.parametrize(
    ("name", "text", "check", "level"),
    [
        ("proc/7/limits", "Max open files  1024  20000  files\n", "open files", Level.WARN),
        ("proc/7/limits", "Max open files  1024  1024  files\n", "open files", Level.FAIL),
        ("proc/7/limits", "Max open files  1024  unlimited  files\n", "open files", Level.OK),
        ("proc/sys/vm/max_map_count", "1000", "memory maps", Level.WARN),
        ("proc/sys/vm/swappiness", "60", "swap", Level.WARN),
        ("proc/7/status", "VmSwap:\t  20480 kB\n", "swap", Level.WARN),
        ("proc/sys/vm/dirty_background_ratio", "50", "dirty pages", Level.WARN),
        ("proc/sys/vm/dirty_background_bytes", "99000000000", "dirty pages", Level.WARN),
        ("proc/sys/vm/overcommit_memory", "2", "overcommit", Level.WARN),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never",
            "huge pages",
            Level.WARN,
        ),
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n", "memory", Level.WARN),
    ],
)
def test_what_is_wrong(tmp_path: Path, name: str, text: str, check: str, level: Level) -> None:
    write(tmp_path, {**GOOD, name: text})
    assert findings(tmp_path)[check] is level


def test_swap_that_is_off_needs_no_setting(tmp_path: Path) -> None:
    write(tmp_path, {**GOOD, "proc/swaps": "Filename\n", "proc/sys/vm/swappiness": "60"})
    assert findings(tmp_path)["swap"] is Level.OK


def test_more_mapped_files_need_more_mappings(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert findings(tmp_path, max_mapped_files=100_000)["memory maps"] is Level.WARN


def test_a_control_group_s_limit_counts_without_its_page_cache(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/memory.max": str(1 << 30),
        "sys/fs/cgroup/memory.current": str(1000 << 20),
        "sys/fs/cgroup/memory.stat": f"anon 5\nfile {900 << 20}\n",
    }
    write(tmp_path, {**GOOD, **group})
    assert findings(tmp_path)["memory"] is Level.OK
    write(tmp_path, {"sys/fs/cgroup/memory.stat": "anon 5\nfile 7\n"})
    (finding,) = (each for each in examine_machine(tmp_path) if each.check == "memory")
    assert (finding.level, finding.what) == (
        Level.WARN,
        "this control group has only 24 MiB available",
    )


def test_nothing_is_known(tmp_path: Path) -> None:
    assert set(findings(tmp_path)) == {"open files"}


def test_every_problem_says_why_and_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, {**GOOD, "proc/sys/vm/max_map_count": "7", "proc/sys/vm/swappiness": "60"})
    for finding in examine_machine(tmp_path):
        if finding.level is not Level.OK:
            assert finding.why
            assert finding.advice
