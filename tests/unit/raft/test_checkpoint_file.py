from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft.checkpoint_file import CheckpointFile
from pyromq.raft.format import CheckpointText

NOTHING = CheckpointText(-1, -1, -1)


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert CheckpointFile(tmp_path).load() == NOTHING


def test_the_last_values_are_loaded(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "dledger-n0")
    file.save(CheckpointText(5, 3, 4))
    file.save(CheckpointText(9, 7, 8))
    assert CheckpointFile(tmp_path / "dledger-n0").load() == CheckpointText(9, 7, 8)


def test_equal_values_are_saved_once(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path)
    file.save(CheckpointText(5, 3, 4))
    (tmp_path / "checkpoint").unlink()
    file.save(CheckpointText(5, 3, 4))
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("content", [None, b"", b"committedIndex=x\n"])
def test_the_backup_stands_in(content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.bak").write_bytes(b"committedIndex=20\nendIndex=34\n")
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    assert CheckpointFile(tmp_path).load() == CheckpointText(34, 20, -1)
