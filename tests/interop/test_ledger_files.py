"""One node's directory, two implementations: DLedger 0.3.1.2 and our raft log, in turns.

The same list of steps (GoldenLedger.java) is carried out by one or the other. Each dumps what it
reads of the files that the other one wrote, and continues them.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.golden import golden_data
from tests.interop.java_programs import BROKER, CLIENT, compiled, javac_or_skip, run_program
from tests.support.apache_rocketmq import java_or_skip
from tests.support.patience import wait_until
from tests.support.raft_logs import DATA_FILE, INDEX_FILE, Ledger, State, stored_bytes

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

GOLDEN = Path(golden_data.__file__).parent / "java"


@pytest.fixture(scope="module")
def java() -> str:
    """The class path of GoldenLedger."""
    java_or_skip()
    javac_or_skip()
    return compiled(GOLDEN, BROKER, CLIENT)


def by_java(java: str, base: Path, *steps: str) -> list[State]:
    """Carry out steps with DLedger; return the last dump."""
    sizes = [str(DATA_FILE), str(INDEX_FILE)]
    return run_program(java, "GoldenLedger", [str(base), *sizes, *steps, "dump"])


def by_us(base: Path, *steps: str) -> list[State]:
    """Carry out steps with our log; return the dump."""
    ledger = Ledger(base)
    try:
        ledger.run(*steps)
        return ledger.dump()
    finally:
        ledger.stop()


def assert_same_bytes(one: Path, other: Path, state: State) -> None:
    ours = stored_bytes(one, state["written"], state["end"])
    assert ours == stored_bytes(other, state["written"], state["end"])


def test_each_continues_what_the_other_wrote(java: str, tmp_path: Path) -> None:
    chooser = random.Random(16)
    turns = []
    for term in range(1, 7):
        sizes = [chooser.choice((1, 100, 700, 1500, 4040)) for _ in range(12)]
        turns.append([f"lead:{term}", *(f"append:{size}" for size in sizes), f"commit:{term * 9}"])
    control = tmp_path / "control"
    reference = by_us(control, *(step for turn in turns for step in turn))
    for first in (0, 1):
        base = tmp_path / f"turns-{first}"
        found: list[State] = []
        for number, turn in enumerate(turns):
            found = by_us(base, *turn) if number % 2 == first else by_java(java, base, *turn)
        assert found == reference
        assert by_us(base) == by_java(java, base) == reference
        assert_same_bytes(base, control, reference[0])


def test_java_recovers_a_truncated_log_of_ours(java: str, tmp_path: Path) -> None:
    steps = ["lead:1", "append:500:30", "follow:2", "cut:6", "accept:400:4096", "commit:7"]
    reference = by_us(tmp_path, *steps)
    assert by_java(java, tmp_path) == reference
    more = ["follow:3", "accept:300:4544", "accept:3500:8192"]
    assert by_java(java, tmp_path, *more) == by_us(tmp_path)


def test_java_recovers_a_rebuilt_log_of_ours(java: str, tmp_path: Path) -> None:
    steps = golden_data.LEDGERS["rebuilt"]
    assert by_us(tmp_path, *steps) == by_java(java, tmp_path)


def test_java_recovers_after_a_kill_of_ours(java: str, tmp_path: Path) -> None:
    """With a preallocated file, and an index that never reached the disk."""
    ledger = Ledger(tmp_path)
    ledger.run("lead:1", "append:500:20")
    ahead = f"{ledger.log.files.segments.end_offset:020d}"
    wait_until(lambda: (tmp_path / "dledger-n0" / "data" / ahead).exists())
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "dledger-n0", killed / "dledger-n0")
    expected = ledger.dump()
    ledger.stop()
    for path in (killed / "dledger-n0" / "index").iterdir():
        path.write_bytes(bytes(INDEX_FILE))
    shutil.copytree(killed, tmp_path / "again")
    assert by_java(java, killed) == by_us(killed) == expected
    assert by_us(tmp_path / "again") == by_java(java, tmp_path / "again") == expected


def test_java_refuses_a_position_that_we_refuse(java: str, tmp_path: Path) -> None:
    steps = ["lead:1", "append:100:3", "follow:2"]
    by_us(tmp_path / "ours", *steps)
    shutil.copytree(tmp_path / "ours", tmp_path / "java")
    with pytest.raises(AssertionError, match="exit code 1"):
        by_java(java, tmp_path / "java", "follow:2", "accept:100:500")
    with pytest.raises(ValueError, match="this log continues at 444"):
        by_us(tmp_path / "ours", "follow:2", "accept:100:500")
    assert by_us(tmp_path / "ours")[0]["end"] == 2
