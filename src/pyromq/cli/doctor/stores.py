"""The end of a store's log, and whether its queues agree with it.

Reads the last segment that was written to, with its CRCs, and the last entry of each queue. Safe
while a broker writes. `pyromq store check` reads everything. Called by `command`, on the main
thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyromq.cli.doctor.finding import Finding, fail, ok, warn
from pyromq.store.backup.source import StoreSource, last_used_base
from pyromq.store.config import MessageStoreConfig
from pyromq.store.lock import RESTORE_MARK, lock_holder
from pyromq.store.offline.check import is_unclean
from pyromq.store.offline.check_log import LogCheck
from pyromq.store.results import StoreError


def examine_store(config: MessageStoreConfig) -> Iterator[Finding]:
    """Examine a store that exists."""
    holder = lock_holder(config.root)
    unclean = is_unclean(config.root)
    if (config.root / RESTORE_MARK).exists():
        yield fail(
            "store",
            f"{config.root} is incomplete: a restore was interrupted",
            "no broker starts on it",
            "run pyromq store restore again, with the same backup",
        )
        return
    if holder is not None:
        yield ok("store", f"process {holder} runs on {config.root}")
    elif unclean:
        yield warn(
            "store",
            f"{config.root}: the last broker was killed, and none is running",
            "the next start checks the end of the log, which takes a while for a large one",
            "start the broker",
        )
    else:
        yield ok("store", f"{config.root} was stopped cleanly")
    try:
        yield _tail(config, may_move=holder is not None or unclean)
    except (StoreError, OSError) as error:
        yield fail(
            "log",
            str(error),
            "the broker may not start, or not find messages",
            f"run pyromq store check {config.root}",
        )


def _tail(config: MessageStoreConfig, *, may_move: bool) -> Finding:
    source = StoreSource(config)
    known = source.queue_ends().log_end
    files = source.files()
    if not files.bases:
        if known:
            raise StoreError(
                f"the log has no files, but the queues refer to messages up to {known}"
            )
        return ok("log", "the log is empty")
    base = last_used_base(files)
    # Only this segment; a broker may have created the next one.
    files.bases = [each for each in files.bases if each >= base]
    check = LogCheck(files, may_move=may_move)
    records = sum(piece.columns.starts.size for piece in check.pieces())
    if check.violations:
        first = check.violations[0]
        return fail(
            "log",
            f"{len(check.violations)} violations in the last segment, the first: {first}",
            "messages after it may be lost at the next start",
            f"run pyromq store check {config.root}, and keep a copy of the store",
        )
    if known > check.end and not config.uses_transient_store_pool:
        return fail(
            "log",
            f"the log ends at {check.end}, but the queues refer to messages up to {known}",
            "messages are missing",
            f"run pyromq store check {config.root}",
        )
    return ok("log", f"ends at {check.end}; {records:,} records of its last segment are intact")
