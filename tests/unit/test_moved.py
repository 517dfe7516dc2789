from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from pyromq import moved


@pytest.mark.parametrize(("old", "new"), moved.MOVED.items())
def test_a_documented_path_leads_to_the_module_itself(old: str, new: str) -> None:
    module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert (module.__name__, module.__spec__ and module.__spec__.name) == (new, new)


def test_names_can_be_imported_from_an_old_path() -> None:
    code = (
        "from pyromq.protocol.frame import RemotingCommand as old\n"
        "from pyromq.protocol.wire.frame import RemotingCommand as new\n"
        "import pyromq.protocol.codes\n"
        "assert old is new and pyromq.protocol.codes.RequestCode\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_stay_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pyromq.protocol.nothing_of_that_name")


def test_the_finder_is_installed_once() -> None:
    moved.install()
    moved.install()
    assert sum(isinstance(finder, moved.MovedModules) for finder in sys.meta_path) == 1
