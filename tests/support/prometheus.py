"""Prometheus and promtool, for tests: those of the machine, or those of Debian's package.

Without them on the path, the package is fetched and unpacked below the cache directory of the
checkout: nothing is installed, and no service starts. That needs `apt-get` and `dpkg-deb`; without
them the running test is skipped, or fails in CI. Each call blocks.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.downloads import download
from tests.support.patience import wait_until

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "prometheus"
_HERE = "127.0.0.1"


class Tools(NamedTuple):
    """The programs."""

    prometheus: str
    promtool: str


def prometheus_or_skip() -> Tools:
    """Return the programs; skip the running test without them, fail it in CI."""
    found = [shutil.which(name) for name in Tools._fields]
    if None not in found:
        return Tools(*map(str, found))
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        reason = "needs prometheus and promtool, or apt-get and dpkg-deb to fetch them"
        if os.environ.get("CI") == "true":
            pytest.fail(reason + " (CI=true: a skip is a failure)")
        pytest.skip(reason)
    return _fetched()


def _fetched() -> Tools:
    CACHE.mkdir(parents=True, exist_ok=True)
    tools = Tools(*(str(CACHE / "usr" / "bin" / name) for name in Tools._fields))
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(map(os.access, tools, [os.X_OK] * len(tools))):
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                # A machine without package lists gets them first; that may need the superuser.
                fetch = "apt-get download prometheus"
                script = f"{fetch} || {{ apt-get update && {fetch}; }}"
                download("prometheus", ["sh", "-c", script], Path(scratch))
                (package,) = Path(scratch).glob("*.deb")
                subprocess.run(["dpkg-deb", "-x", package, CACHE], check=True)
    return tools


def checked(tools: Tools, *arguments: str, text: str = "") -> tuple[int, list[str]]:
    """Run promtool; return its exit code and the lines that it wrote."""
    done = subprocess.run(
        [tools.promtool, *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


class Prometheus:
    """A running Prometheus; `query` asks it."""

    def __init__(self, port: int) -> None:
        self._base = f"http://{_HERE}:{port}/api/v1/"

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series that an expression has now."""
        found = self._get("query", {"query": expression})["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules that it evaluates."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        """Return whether it answers."""
        try:
            self._get("status/buildinfo")
        except OSError:
            return False
        return True

    def _get(self, path: str, fields: Mapping[str, str] | None = None) -> Any:
        query = "?" + urllib.parse.urlencode(fields) if fields else ""
        with urllib.request.urlopen(self._base + path + query, timeout=10) as response:
            return json.load(response)["data"]


@contextmanager
def running_prometheus(
    tools: Tools, directory: Path, port: int, targets: Sequence[str], rules: Path
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes `targets` every second; stop it afterwards."""
    config = directory / "prometheus.yml"
    config.write_text(
        json.dumps(  # YAML contains JSON
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "scrape_configs": [
                    {"job_name": "pyromq", "static_configs": [{"targets": list(targets)}]}
                ],
            }
        )
    )
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                tools.prometheus,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={_HERE}:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        found = Prometheus(port)
        wait_until(lambda: found.is_ready() or process.poll() is not None)
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        yield found
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
