from __future__ import annotations

import pytest

from pyromq.protocol.namespace import with_namespace, without_namespace


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "ns%orders"),
        ("%RETRY%group", "%RETRY%ns%group"),
        ("%DLQ%group", "%DLQ%ns%group"),
        ("ns%orders", "ns%orders"),
        ("%RETRY%ns%group", "%RETRY%ns%group"),
    ],
)
def test_names_of_tenants(name: str, wrapped: str) -> None:
    assert with_namespace("ns", name) == wrapped
    assert with_namespace("ns", wrapped) == wrapped
    assert without_namespace("ns", wrapped) == name.replace("ns%", "")
    assert with_namespace("", name) == name


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "CID_RMQ_SYS_TRANS", ""])
def test_system_names_have_no_namespace(name: str) -> None:
    assert with_namespace("ns", name) == name


def test_names_of_other_namespaces_stay_unchanged() -> None:
    assert without_namespace("ns", "other%orders") == "other%orders"
    assert without_namespace("", "ns%orders") == "ns%orders"
    assert without_namespace("ns", "orders") == "orders"
