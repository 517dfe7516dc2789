from __future__ import annotations

import pytest

from pyromq.protocol.wire.codes import PROTOCOL_VERSION
from pyromq.protocol.wire.versions import version_name


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (0, "V3_0_0"),
        (15, "V3_0_0"),
        (16, "V3_0_1_SNAPSHOT"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (85, "V3_2_9"),
        (86, "V3_3_1_SNAPSHOT"),
        (121, "V3_4_9"),
        (211, "V3_9_9"),
        (212, "V4_0_0_SNAPSHOT"),
        (PROTOCOL_VERSION, "V4_9_7"),
        (413, "V5_0_0"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (-1, "HIGHER_VERSION"),
    ],
)
def test_names_are_java_s(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
