from __future__ import annotations

import random
from pathlib import Path

from tests.support.replication import caught_up, log_bytes, pair
from tests.support.stores import put


def fill(store: object, count: int, seed: int = 1, largest: int = 3000) -> None:
    rng = random.Random(seed)
    for number in range(count):
        put(
            store,  # type: ignore[arg-type]
            rng.randbytes(rng.randrange(largest)),
            topic=f"topic-{rng.randrange(3)}",
            queue_id=rng.randrange(4),
            tags=rng.choice(["", "a", "b"]),
            keys=f"key-{number}",
        )
        if rng.random() < 0.3:
            store.seal()  # type: ignore[attr-defined]
    store.seal()  # type: ignore[attr-defined]


async def test_a_replica_copies_the_whole_log(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, replica):
        fill(master.store, 300)
        await caught_up(master, replica)
        fill(master.store, 300, seed=2)
        await caught_up(master, replica)
        assert not replica.stopped
    ours, theirs = log_bytes(tmp_path / "replica"), log_bytes(tmp_path / "master")
    assert ours.keys() == theirs.keys()
    assert ours == theirs
