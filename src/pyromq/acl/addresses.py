"""White-list expressions: which addresses a caller may come from to pass without a check.

| form | matches |
| --- | --- |
| blank | nobody |
| `*`, `*.*.*.*`, `*:*:*:*:*:*:*:*` | everybody |
| `1.2.3.4`, `::1` | this address |
| `1.1.1.1,1.1.1.2` | each address of the list |
| `192.168.0.{1,2}`, `fe80::{1,2}` | a list in the last part |
| `192.168.*.*`, `1.1.1.10-20` | ranges of octets |
| `fe80::1:*`, `5::7:6:1-200:*` | ranges of the last group, or of the one before a final `*` |
| `10.0.0.0/8`, `fd00::/8` | a network; strict mode only |

Compatible mode repeats RocketMQ's reading of a range: octets after the first one that holds `*` or
`a-b` do not count, so that `192.168.1-9.5` lets 192.168.3.77 in. Strict mode takes every octet at
its word. Expressions that RocketMQ loads but cannot match (`*.168.1.1`, `1.1.1.0-0`) are errors in
compatible mode.

Pure. Called by `files` when rules are loaded and by `rules` for each new caller.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_OCTETS, _OCTET_MAX = 4, 0xFF
_GROUPS, _GROUP_MAX = 8, 0xFFFF

#: Lowest and highest value of one octet or group.
_Range: TypeAlias = tuple[int, int]


class ExpressionError(ValueError):
    """A text that is not a white-list expression; the message says why."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    is_everybody: bool = False
    #: Each matches an address whose parts are all in range: 4 octets, or 8 groups.
    patterns: tuple[tuple[_Range, ...], ...] = ()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    #: What a reader of the expression may not expect; empty for most.
    warning: str = ""

    def matches(self, address: Address | None) -> bool:
        """Return whether a caller from `address` passes; None is an unknown address."""
        if self.is_everybody:
            return True
        if address is None or not (self.patterns or self.networks):
            return False
        parts = _parts(address)
        return any(_fits(parts, pattern) for pattern in self.patterns) or any(
            address in network for network in self.networks
        )

    @property
    def is_blank(self) -> bool:
        """Whether the expression matches nobody."""
        return not (self.is_everybody or self.patterns or self.networks)


#: Matches nobody.
BLANK: Final = Expression("")


def parse_expression(text: str, *, strict: bool = False) -> Expression:
    """Parse an expression of a white list. Raises ExpressionError."""
    if not text.strip():
        return BLANK
    if text in _EVERYBODY:
        return Expression(text, is_everybody=True, warning="lets everybody in without a signature")
    if text.endswith("}"):
        return Expression(text, patterns=tuple(map(_one, _expanded(text))))
    if "," in text:
        return _joined(text, [_single(part, strict=strict) for part in text.split(",") if part])
    return _single(text, strict=strict)


def parse_address(host: str) -> Address | None:
    """Return a caller's address, an IPv4-mapped one as IPv4; None if it is not an address."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _single(text: str, *, strict: bool) -> Expression:
    if strict and "/" in text:
        try:
            return Expression(text, networks=(ipaddress.ip_network(text),))
        except ValueError as error:
            raise ExpressionError(f"{text!r:.100} is not a network: {error}") from None
    if "*" not in text and "-" not in text:
        return Expression(text, patterns=(_one(text),))
    return _group_range(text, strict=strict) if ":" in text else _octet_range(text, strict=strict)


def _joined(text: str, parts: list[Expression]) -> Expression:
    return Expression(
        text,
        patterns=tuple(pattern for part in parts for pattern in part.patterns),
        networks=tuple(network for part in parts for network in part.networks),
        warning=next((part.warning for part in parts if part.warning), ""),
    )


def _expanded(text: str) -> list[str]:
    """Return the addresses of an expression with braces in its last part."""
    head, brace, rest = text.partition("{")
    if not brace or not head.endswith((".", ":")) or "{" in rest:
        raise ExpressionError(f"{text!r:.100}: braces may only be the whole last part")
    return [head + each for each in rest[:-1].split(",") if each]


def _one(text: str) -> tuple[_Range, ...]:
    """Return the pattern of one address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ExpressionError(
            f"{text!r:.100} is not an IP address; host names are not accepted, networks "
            "(10.0.0.0/8) only with aclMode=strict"
        ) from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return tuple((part, part) for part in _parts(mapped or address))


def _octet_range(text: str, *, strict: bool) -> Expression:
    octets = [part.strip() for part in text.split(".")]
    if len(octets) != _OCTETS:
        raise ExpressionError(f"{text!r:.100}: expected four octets")
    pattern = [_range(text, octet, 10, _OCTET_MAX) for octet in octets]
    if strict:
        return Expression(text, patterns=(tuple(pattern),))
    ranged = [number for number in range(_OCTETS) if not octets[number].isdigit()]
    first = ranged[0]
    if first == 0 or pattern[first][1] == 0:
        raise ExpressionError(
            f"{text!r:.100}: RocketMQ cannot match a range in the first octet or one that ends "
            "at 0; aclMode=strict can"
        )
    ignored = any(bounds != (0, _OCTET_MAX) for bounds in pattern[first + 1 :])
    pattern[first + 1 :] = [(0, _OCTET_MAX)] * (_OCTETS - first - 1)
    warning = "octets after the first range do not count, as in RocketMQ" if ignored else ""
    return Expression(text, patterns=(tuple(pattern),), warning=warning)


def _group_range(text: str, *, strict: bool) -> Expression:
    groups = text.split(":")
    # `*` only at the end; a range in the last group, or in the one before a final `*`.
    count = 2 if groups[-1] == "*" and len(groups) > 1 and "-" in groups[-2] else 1
    if any("*" in group or "-" in group for group in groups[:-count]):
        raise ExpressionError(
            f"{text!r:.100}: `*` may only be the last group, a range the last one or the one "
            "before a final `*`"
        )
    ranges = [_range(text, group, 16, _GROUP_MAX) for group in groups[-count:]]
    if not strict and any(high == 0 for _, high in ranges):
        raise ExpressionError(f"{text!r:.100}: RocketMQ cannot match a range that ends at 0")
    head = groups[:-count]
    missing = _GROUPS - len(groups)
    if "" not in head and missing > 0:
        if strict:
            raise ExpressionError(f"{text!r:.100}: expected eight groups or `::`; use a network")
        return Expression(text, patterns=(_prefix(text, head, ranges, missing),))
    base = _one(":".join([*head, *["0"] * count]))
    return Expression(text, patterns=((*base[:-count], *ranges),))


def _prefix(text: str, head: list[str], ranges: list[_Range], missing: int) -> tuple[_Range, ...]:
    """Return the pattern of an address that stops early: the groups that follow do not count."""
    fixed = [_range(text, group, 16, _GROUP_MAX) for group in head]
    return (*fixed, *ranges, *[(0, _GROUP_MAX)] * missing)


def _range(text: str, part: str, base: int, highest: int) -> _Range:
    if part == "*":
        return 0, highest
    low, minus, high = part.partition("-")
    try:
        # int() alone accepts signs, blanks and underscores.
        if not (low.isalnum() and (high if minus else low).isalnum()):
            raise ValueError
        bounds = int(low, base), int(high if minus else low, base)
    except ValueError:
        raise ExpressionError(f"{text!r:.100}: {part!r:.40} is not a number or a range") from None
    if not bounds[0] <= bounds[1] <= highest:
        raise ExpressionError(f"{text!r:.100}: {part!r:.40} is not within 0 to {highest:d}")
    return bounds


def _parts(address: Address) -> tuple[int, ...]:
    packed = address.packed
    if len(packed) == _OCTETS:
        return tuple(packed)
    return tuple(int.from_bytes(packed[at : at + 2], "big") for at in range(0, len(packed), 2))


def _fits(parts: tuple[int, ...], pattern: tuple[_Range, ...]) -> bool:
    return len(parts) == len(pattern) and all(
        low <= part <= high for part, (low, high) in zip(parts, pattern, strict=True)
    )
