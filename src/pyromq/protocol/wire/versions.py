"""Names of RocketMQ's versions: clients and brokers report an ordinal of Java's list.

The list has two entries for each release, the snapshot first. It begins with the betas of 3.0.0,
and the minor versions 3.3 to 3.9 have no release 0:

    | ordinals  | releases                            |
    | --------- | ----------------------------------- |
    | 0 - 15    | 3.0.0 and its betas                 |
    | 16 - 45   | 3.0.1 to 3.0.15                     |
    | 46 - 85   | 3.1.0 to 3.2.9, ten for each minor  |
    | 86 - 211  | 3.3.1 to 3.9.9, nine for each minor |
    | 212 - 611 | 4.0.0 to 5.9.9, ten for each minor  |

Pure. Used by admin tools.
"""

from __future__ import annotations

from typing import Final

_FIRST_RELEASE: Final = 16
_FROM_3_1: Final = 46
_FROM_3_3: Final = 86
_FROM_4_0: Final = 212
_END: Final = 612
#: Java's name for versions that its list does not have.
_HIGHER: Final = "HIGHER_VERSION"


def version_name(ordinal: int) -> str:
    """Return Java's name of a version, such as `V4_9_7`."""
    if ordinal < 0 or ordinal >= _END:
        return _HIGHER
    if ordinal < _FIRST_RELEASE:
        return "V3_0_0"
    if ordinal < _FROM_3_1:
        release, is_final = divmod(ordinal - _FIRST_RELEASE, 2)
        return _name(3, 0, release + 1, is_final)
    if ordinal < _FROM_3_3:
        release, is_final = divmod(ordinal - _FROM_3_1, 2)
        return _name(3, 1 + release // 10, release % 10, is_final)
    if ordinal < _FROM_4_0:
        release, is_final = divmod(ordinal - _FROM_3_3, 2)
        return _name(3, 3 + release // 9, release % 9 + 1, is_final)
    release, is_final = divmod(ordinal - _FROM_4_0, 2)
    return _name(4 + release // 100, release // 10 % 10, release % 10, is_final)


def _name(major: int, minor: int, patch: int, is_final: int) -> str:
    return f"V{major}_{minor}_{patch}" + ("" if is_final else "_SNAPSHOT")
