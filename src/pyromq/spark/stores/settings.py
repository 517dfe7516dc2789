"""Find the settings of stores for `rebuild` and `verify`, and describe their logs for a dry run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyromq.base.sizes import MIB
from pyromq.protocol.java.properties import parse_properties
from pyromq.store.config import MessageStoreConfig
from pyromq.store.offline.check import guess_config, is_unclean
from pyromq.store.offline.log_parts import plan_parts


def load_configs(stores: Sequence[Path], config_file: Path | None) -> list[MessageStoreConfig]:
    """Return the settings of stores, from a broker properties file or else from their files.

    Raises ValueError for a mistake of the user.
    """
    configs = []
    for store in stores:
        if not store.is_dir():
            raise ValueError(f"{store} is not a directory: give the directory of a broker's store")
        if config_file is None:
            configs.append(guess_config(store))
            continue
        try:
            properties = parse_properties(config_file.read_bytes())
            properties["storePathRootDir"] = str(store)
            configs.append(MessageStoreConfig.load(properties)[0])
        except (OSError, ValueError) as error:
            raise ValueError(f"{config_file}: {error}") from error
    configs = absolute(configs)
    if len({config.root for config in configs}) < len(configs):
        raise ValueError("the same store is given twice")
    return configs


def absolute(configs: Sequence[MessageStoreConfig]) -> list[MessageStoreConfig]:
    """Return the settings with absolute paths: tasks run in other directories."""
    return [replace(each, store_path_root_dir=str(each.root.resolve())) for each in configs]


def describe(configs: Sequence[MessageStoreConfig], part_size: int) -> Iterator[str]:
    """Yield a line about the log of each store. Raises StoreError."""
    for config in configs:
        parts = plan_parts(config, part_size)
        size = sum(part.end - part.start for part in parts)
        start = parts[0].start if parts else 0
        state = ", in use or not cleanly stopped" if is_unclean(config.root) else ""
        yield (
            f"{config.root}: log of {size / MIB:,.0f} MiB, starting at {start}, "
            f"{len(parts)} parts to decode{state}"
        )
