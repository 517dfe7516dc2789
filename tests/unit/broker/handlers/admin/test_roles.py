from __future__ import annotations

import errno
from typing import Any

import pytest

from pyromq.broker.handlers.admin.roles import RoleAdminHandlers
from pyromq.broker.role import RoleError
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.promotion import PromotionCheck, PromotionReport
from pyromq.store.config import BrokerRole
from tests.unit.broker.fakes import FakeConnection


class FakePromotion:
    """Answers with a report, or fails."""

    def __init__(self, promoted: bool = True, error: Exception | None = None) -> None:
        self.report = PromotionReport(
            "broker-a", promoted, "SLAVE", 1, 9, [PromotionCheck("role", promoted, "so it is")]
        )
        self.error = error
        self.asked: list[tuple[BrokerRole, bool]] = []

    async def promote(self, role: BrokerRole, *, force: bool) -> PromotionReport:
        self.asked.append((role, force))
        if self.error is not None:
            raise self.error
        return self.report


async def promote(promotion: Any, **fields: str) -> RemotingCommand:
    handlers = RoleAdminHandlers(promotion)
    (route,) = handlers.routes()
    assert route.code == RequestCode.PROMOTE_BROKER
    request = RemotingCommand(RequestCode.PROMOTE_BROKER, ext_fields=fields)
    return await handlers.promote(FakeConnection(), request)


async def test_the_report_is_the_body() -> None:
    promotion = FakePromotion()
    answer = await promote(promotion)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert PromotionReport.decode(answer.body) == promotion.report
    await promote(promotion, role="SYNC_MASTER", force="true")
    assert promotion.asked == [(BrokerRole.ASYNC_MASTER, False), (BrokerRole.SYNC_MASTER, True)]


async def test_a_refusal_has_the_report_too() -> None:
    promotion = FakePromotion(promoted=False)
    answer = await promote(promotion)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "not promoted: so it is")
    assert PromotionReport.decode(answer.body) == promotion.report


@pytest.mark.parametrize(
    "error", [RoleError("the broker is stopping"), OSError(errno.ENOSPC, "disk full")]
)
async def test_a_failure_is_named(error: Exception) -> None:
    with pytest.raises(RequestError, match=r"not promoted: .*(stopping|disk full)"):
        await promote(FakePromotion(error=error))


async def test_other_roles_are_refused() -> None:
    promotion = FakePromotion()
    with pytest.raises(RequestError, match="role SLAVE: expected ASYNC_MASTER or SYNC_MASTER"):
        await promote(promotion, role="SLAVE")
    assert promotion.asked == []
