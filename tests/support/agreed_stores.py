"""Stores of raft members, with a log but without a node: a test decides what is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyromq.raft.log import RaftLog
from pyromq.store.agreement import StoreAgreement
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from tests.support.stores import STORE_HOST, small_config


def entries_of(config: MessageStoreConfig, first_position: int = 0) -> RaftLog:
    """The log of a member, which is not started."""
    return RaftLog(
        config.root / "dledger-n0",
        data_file_size=config.mapped_file_size_commit_log,
        first_position=first_position,
    )


def open_member(root: Path, **changes: Any) -> MessageStore:
    """A started store on `root`, which does not lead."""
    config = small_config(root, **changes)
    store = MessageStore(config, STORE_HOST, open_entries=lambda first: entries_of(config, first))
    store.start()
    agreement_of(store).advance()
    return store


def open_leader(root: Path, term: int = 1, **changes: Any) -> MessageStore:
    """A started store that leads; everything in its log is committed."""
    store = open_member(root, **changes)
    commit(store)
    lead(store, term)
    return store


def lead(store: MessageStore, term: int) -> None:
    """Let a member lead, whose whole log is committed."""
    agreement = agreement_of(store)
    agreement.refusal_of_group = lambda: None
    agreement.lead(term, lambda: None)


def commit(store: MessageStore, index: int | None = None) -> None:
    """Commit the entries up to `index`, or all."""
    log = log_of(store)
    log.commit(log.end_index if index is None else index)
    agreement_of(store).advance()


def agreement_of(store: MessageStore) -> StoreAgreement:
    """The store's door for its group."""
    assert store.agreement is not None
    return store.agreement


def log_of(store: MessageStore) -> RaftLog:
    """The log of a member."""
    log = agreement_of(store).entries
    assert isinstance(log, RaftLog)
    return log
