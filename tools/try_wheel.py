"""Build the source archive, a wheel from it, and try the wheel in an empty environment.

Run by `make wheel`. The results are in dist/. In the environment, a broker must start, take a
message and give it back: with the compiled kernel, and with PYROMQ_PURE=1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
#: Of one command; the first start of an environment compiles every module.
_LIMIT_SECONDS = 120.0
_BOOTED = re.compile(r"boot success\..* name server is (\S+) \[(.*)\]")


def main() -> None:
    """Build and try, or exit with the output of the command that failed."""
    wheel = build()
    with tempfile.TemporaryDirectory(prefix="pyromq-wheel-") as directory:
        empty = Path(directory)
        venv.create(empty / "venv", with_pip=True)
        pip = [empty / "venv/bin/python", "-m", "pip", "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", wheel], empty)
        smoke(empty, "compiled kernel", {})
        smoke(empty, "pure Python (PYROMQ_PURE is set)", {"PYROMQ_PURE": "1"})
    print(f"{wheel.relative_to(ROOT)} works")


def build() -> Path:
    """Build dist/*.tar.gz, and dist/*.whl from it; return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run([sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", DIST], ROOT)
    (archive,) = DIST.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--no-deps", "--wheel-dir", DIST, archive], DIST)
    (wheel,) = DIST.glob("*.whl")
    if "-abi3-" not in wheel.name:
        sys.exit(f"{wheel.name} has no compiled kernel: is there a C compiler?")
    return wheel


def smoke(directory: Path, kernel: str, environment: dict[str, str]) -> None:
    """Start a broker of the environment, send it a message, and consume that."""
    pyromq = directory / "venv/bin/pyromq"
    version = run([pyromq, "--version"], directory, environment)
    if not version.rstrip().endswith(f", {kernel}"):
        sys.exit(f"pyromq --version printed {version!r}, expected {kernel}")
    server = subprocess.Popen(
        [
            *(pyromq, "standalone", "--namesrv-port", "0", "--broker-port", "0"),
            *("--data", directory / kernel.partition(" ")[0]),
        ],
        cwd=directory,
        env=clean_environment(environment),
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(_LIMIT_SECONDS, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        booted = next(filter(None, map(_BOOTED.search, server.stdout)), None)
        if booted is None or booted[2] != kernel:
            sys.exit(f"expected a boot line with [{kernel}], not {booted}")
        address = ["--namesrv", booted[1]]
        for _ in range(2):  # the first message to a topic never takes the kernel's path
            run([pyromq, "send", *address, "greetings", "hello"], directory, environment)
        consume = [pyromq, "consume", *address, "greetings", "--from", "first", "--count", "2"]
        consumed = run(consume, directory, environment)
        if consumed.count("hello") != 2:
            sys.exit(f"sent 'hello' twice, consumed {consumed!r}")
    finally:
        watchdog.cancel()
        server.terminate()
        server.wait(_LIMIT_SECONDS)


def run(
    command: list[str | Path], directory: Path, environment: dict[str, str] | None = None
) -> str:
    """Return the standard output of a command, or exit with everything that it printed."""
    done = subprocess.run(
        command,
        check=False,
        cwd=directory,
        env=clean_environment(environment or {}),
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS * 5,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def clean_environment(more: dict[str, str]) -> dict[str, str]:
    """Return the environment without variables that would let another pyromq in."""
    dropped = ("PYTHONPATH", "PYROMQ_PURE", "NAMESRV_ADDR")
    return {name: value for name, value in os.environ.items() if name not in dropped} | more


if __name__ == "__main__":
    main()
