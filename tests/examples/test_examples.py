"""Every example does what it says, against a cluster in this process."""

from __future__ import annotations

import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.testing import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

#: What each prints.
PRINTED = {
    "quick_start": "sent SEND_OK broker-0\nconsumed new order-17 one book\n",
    "synchronous": ("sent SEND_OK\nsubmitted {'SEND_OK'}\nconsumed ['1', '2', '3', '4']\n"),
    "ordered": "order-1 created paid sent\norder-2 created paid sent\n",
    "orderly_consumer": "created\npaid failed\npaid failed\npaid\nsent\n",
    "transaction": ("price 10 COMMIT\nprice -1 ROLLBACK\nprice 20 COMMIT\nconsumed [10, 20]\n"),
    "batch": "batch of 100 on 1 queue\nsent 500 single messages\n",
    "delay": "now\none second later\nnever early: True\n",
    "sql_filter": "15 south\n25 north\n",
    "request_reply": "reply: HELLO\nno reply: RequestTimeoutError\n",
    "administration": (
        "created on 1 broker\n2 queues, 3 messages\n"
        "no such topic, but there is admin-example\ndeleted from DefaultCluster\n"
    ),
    "lite_pull": "loop 0\nloop 1\nloop 2\nlists 3 4 5 6 7 8 9\nfrom 8 on 8 9\n",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.mark.parametrize("name", PRINTED)
def test_example(
    name: str,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out == PRINTED[name]


def test_the_web_service(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    app = runpy.run_path(str(EXAMPLES / "fastapi_app.py"))["app"]
    with testclient.TestClient(app) as client:
        answer = client.post("/orders/order-17")
        assert answer.status_code == 202
        assert len(answer.json()["id"]) == 32
        deadline = time.monotonic() + 30
        while not (kept := client.get("/orders").json()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert kept == ["order-17"]


@pytest.mark.parametrize(
    ("name", "count"), [("test_with_fixture", 4), ("test_failover", 3), ("test_election", 3)]
)
def test_the_tests_with_fixtures(name: str, count: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--import-mode=importlib", f"--rootdir={tmp_path}"),
            str(EXAMPLES / f"{name}.py"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{count} passed" in done.stdout


def test_none_is_left_out() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {*PRINTED, "fastapi_app", "test_election", "test_failover", "test_with_fixture"}
