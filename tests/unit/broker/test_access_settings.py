from __future__ import annotations

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.config import load_broker_properties


def test_access_control_is_off_and_compatible_by_default() -> None:
    config = load_broker_properties({}).broker
    assert (config.acl_enable, config.is_acl_strict) == (False, False)


def test_access_control_needs_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"^aclEnable=true: expected rocketmqHome"):
        load_broker_properties({"aclEnable": "true"})
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt/rocketmq")
    loaded = load_broker_properties({"aclEnable": "true", "aclMode": "strict"}).broker
    assert loaded.rocketmq_home == "/opt/rocketmq"
    assert loaded.is_acl_strict


@pytest.mark.parametrize("file", ["/etc/passwd", "../plain_acl.yml"])
def test_the_file_stays_below_home(file: str) -> None:
    with pytest.raises(ConfigError, match="below rocketmqHome"):
        load_broker_properties(
            {"aclEnable": "true", "rocketmqHome": "/opt/rocketmq", "aclPlainFile": file}
        )


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"^aclMode=lax: expected compatible or strict"):
        load_broker_properties({"aclMode": "lax"})
