from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bench.servers import NotInstalledError, indexed_keys, needing
from tests.support.downloads import DownloadError


def test_keys_are_counted_over_all_index_files(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    for name, count in (("20260101000000000", 20_000_000), ("20260101000100000", 8)):
        head = struct.pack(">QQQQII", 1, 2, 3, 4, 5_000_000, count)
        (tmp_path / "index" / name).write_bytes(head + bytes(100))
    assert indexed_keys(tmp_path) == 19_999_999 + 7


def test_a_store_without_an_index_has_no_keys(tmp_path: Path) -> None:
    assert indexed_keys(tmp_path) == 0


def test_a_missing_program_is_named() -> None:
    with (
        pytest.raises(NotInstalledError, match="no-such-program not found"),
        needing("sh", "no-such-program"),
    ):
        pytest.fail("must not run")


def test_a_missing_tool_and_a_failed_download_are_named() -> None:
    with pytest.raises(NotInstalledError, match="mvn not found"), needing("sh"):
        raise FileNotFoundError(2, "No such file", "mvn")
    with pytest.raises(NotInstalledError, match=r"^no network$"), needing("sh"):
        raise DownloadError("no network\nand much more text")
