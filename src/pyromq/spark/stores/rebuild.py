"""The rebuild job: recreate consume queues and key indexes of stores from their logs.

    rebuild_stores(session, [guess_config(Path("/data/broker-a/store")), ...])

The files are byte for byte those that the broker, ours or Java's, writes. They are built beside the
old ones and swapped in once all of them are complete. A store in use is rejected. During the swap
the store counts as not cleanly stopped, so a broker that starts after a crash recovers it.
`pyromq store rebuild` does the same on one core, without Spark. Called in the driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from pyromq.spark.stores.builds import Progress, StoreBuild, build_stores
from pyromq.spark.stores.settings import absolute
from pyromq.store.lock import lock_store, unlock_store
from pyromq.store.offline.log_parts import PART_SIZE
from pyromq.store.offline.rebuild import Rebuilt, Targets, put_in_place, require_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.store.config import MessageStoreConfig

#: Holds decoded parts, in the store's directory.
SCRATCH: Final = "rebuild.parts"


def rebuild_stores(
    session: SparkSession,
    configs: Sequence[MessageStoreConfig],
    *,
    queues: bool = True,
    index: bool = True,
    part_size: int = PART_SIZE,
    progress: Progress | None = None,
) -> list[Rebuilt]:
    """Rebuild the consume queues, the indexes or both of stopped stores.

    Raises StoreError, before changing anything, if a store is in use, has no log, or has a hole in
    its log. Any later failure leaves the old files in place.
    """
    configs = absolute(configs)
    with locked_stores(configs):
        return rebuild_locked_stores(
            session, configs, queues=queues, index=index, part_size=part_size, progress=progress
        )


@contextmanager
def locked_stores(configs: Sequence[MessageStoreConfig]) -> Iterator[None]:
    """Hold the locks of all stores. Raises StoreError if one is in use or has no log."""
    with ExitStack() as locks:
        for config in configs:
            require_log(config)
            locks.callback(unlock_store, lock_store(config.root))
        yield


def rebuild_locked_stores(
    session: SparkSession,
    configs: Sequence[MessageStoreConfig],
    *,
    queues: bool,
    index: bool,
    part_size: int,
    progress: Progress | None,
) -> list[Rebuilt]:
    """Rebuild stores that the caller has locked; their paths are absolute."""
    builds = [
        StoreBuild(
            config,
            Targets.beside(config, queues=queues, index=index),
            config.root / SCRATCH,
        )
        for config in configs
    ]
    try:
        for build in builds:
            shutil.rmtree(build.scratch, ignore_errors=True)
            build.targets.make()
        rebuilt = build_stores(session, builds, part_size=part_size, progress=progress)
        for build in builds:
            put_in_place(build.config, build.targets)
    finally:
        for build in builds:
            for directory in (build.scratch, *build.targets.wanted()):
                shutil.rmtree(directory, ignore_errors=True)
    return rebuilt
