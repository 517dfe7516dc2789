from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyromq.testing import Cluster
from tests.unit.cli.admin.admin_runs import as_json, invoke, output


@pytest.mark.parametrize(
    ("line", "name", "keys"),
    [
        ("exportConfigs -c DefaultCluster", "configs", {"brokerConfigs", "clusterScale"}),
        ("exportMetrics -c DefaultCluster", "metrics", {"evaluateReport", "totalData"}),
        (
            "exportMetadata -c DefaultCluster -s",
            "metadata",
            {"exportTime", "topicConfigTable", "subscriptionGroupTable"},
        ),
        ("exportMetadata -c DefaultCluster -t", "topic", {"exportTime", "topicConfigTable"}),
        (
            "exportMetadata -c DefaultCluster -g",
            "subscriptionGroup",
            {"exportTime", "subscriptionGroupTable"},
        ),
        ("exportMetadata -b {broker} -t", "topic", {"dataVersion", "topicConfigTable"}),
        (
            "exportMetadata -b {broker} -g",
            "subscriptionGroup",
            {"dataVersion", "subscriptionGroupTable"},
        ),
    ],
)
def test_files(
    rocketmq_session: Cluster, tmp_path: Path, line: str, name: str, keys: set[str]
) -> None:
    line = line.format(broker=rocketmq_session.brokers[0].address) + f" -f {tmp_path / 'new'}"
    path = tmp_path / "new" / f"{name}.json"
    assert output(rocketmq_session.namesrv, line) == f"export {path} success\n"
    assert json.loads(path.read_text()).keys() == keys
    found = as_json(rocketmq_session.namesrv, line)
    assert found["path"] == str(path)
    assert found["content"].keys() == keys


def test_a_folder_that_cannot_be_written(rocketmq_session: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = f"exportConfigs -c DefaultCluster -f {tmp_path / 'file' / 'folder'}"
    result = invoke(rocketmq_session.namesrv, line)
    assert result.exit_code == 1
    assert "Not a directory" in result.output
