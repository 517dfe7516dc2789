"""Filter by properties: compile RocketMQ's SQL92 expressions to predicates.

    expression   conjunction { OR conjunction }
    conjunction  equality { AND equality }
    equality     comparison { = comparison | <> comparison | IS [NOT] NULL }
    comparison   operand { (> | >= | < | <=) operand | [NOT] BETWEEN operand AND operand
                         | [NOT] IN ( text { , text } ) }
    operand      { + | - | NOT } ( literal | property | ( expression ) )

`compile_sql(text)` returns an SqlExpression; `expression.matches(properties)` evaluates it for a
message. Results equal those of RocketMQ 4.9.7, including its oddities:

1. Logic has three values: true, false, null. A message matches if the result is true.
2. NOT binds to the next operand: `NOT a = 5` is `(NOT a) = 5`. A property on its own is false, or
   null if it is missing, because it is a string and never a Boolean.
3. `a = b` is true if both are missing and null if only `a` is. `a IN (…)` and comparisons by < and
   > are null if `a` is missing.
4. The negative of a property is null.
5. Rejected: <, > and BETWEEN with a literal that is not a number, or with a condition; `= NULL`;
   BETWEEN with literals in the wrong order; IN on anything but a property; numbers beyond a Long;
   0.0, and numbers that a Double rounds to it.
6. Text after the expression is ignored, except for its first token.

One rule is stricter: an expression nested more than MAX_DEPTH levels deep is rejected. Java risks a
stack overflow instead.

Pure; used by the broker's filters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyromq.protocol.filter.sql_tokens import Kind, SqlError, Token, Tokens
from pyromq.protocol.filter.sql_values import (
    NUMBERS,
    READERS,
    Comparison,
    Type,
    comparison,
)

__all__ = ["MAX_DEPTH", "SQL92_EXPRESSION_TYPE", "SqlError", "SqlExpression", "compile_sql"]

SQL92_EXPRESSION_TYPE: Final = "SQL92"
#: Levels of parentheses, NOTs and chained equalities.
MAX_DEPTH: Final = 100
#: Characters of an expression. It arrives with each heartbeat, is stored, and takes about 3 µs per
#: character to compile.
MAX_LENGTH: Final = 16 * 1024

Properties = Mapping[str, str]
#: Computes the value of an operand for a message.
Evaluation = Callable[[Properties], Any]


class SqlExpression:
    """A compiled expression."""

    __slots__ = ("evaluate", "names", "text")

    def __init__(
        self, text: str, names: frozenset[str], evaluate: Callable[[Properties], bool | None]
    ) -> None:
        self.text = text
        #: The properties that it names.
        self.names = names
        #: Return true, false or null for a message; raises MismatchError.
        self.evaluate = evaluate

    def matches(self, properties: Properties) -> bool:
        """Return whether a message with these properties matches. Never raises.

        As in RocketMQ, a message does not match if the evaluation fails.
        """
        try:
            return self.evaluate(properties) is True
        except Exception:  # a MismatchError, or a bug, which must not stop all pulls of a group
            return False


def compile_sql(text: str) -> SqlExpression:
    """Compile an expression. Raises SqlError."""
    if len(text) > MAX_LENGTH:
        raise SqlError(f"expression of {len(text)} characters, limit {MAX_LENGTH}")
    parser = _Parser(text)
    condition = _as_condition(parser.disjunction(0))
    return SqlExpression(text, parser.names, condition.evaluate)


@dataclass(slots=True)
class _Operand:
    """A node of an expression: its type and its evaluation."""

    type: Type
    evaluate: Evaluation
    is_literal: bool = False
    #: The value of a literal or a negated number.
    value: Any = None
    #: The name of a property.
    name: str | None = None
    #: Whether this is TRUE, FALSE, NULL, a comparison or a combination of conditions.
    is_condition: bool = False
    depth: int = 0
    #: The operands of a chain of ORs or ANDs; `_join` appends to it.
    chained: list[Evaluation] = field(default_factory=list)
    #: OR or AND if this is a chain.
    chain_of: str = ""

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        return f"{self.value!r:.40}" if self.is_literal else "a condition"


class _Parser:
    """Recursive-descent parser that builds closures."""

    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._properties: dict[str, _Operand] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._properties)

    def disjunction(self, depth: int) -> _Operand:
        left = self._conjunction(depth)
        while self._tokens.take_if("OR"):
            left = _join("OR", left, self._conjunction(depth))
        return left

    def _conjunction(self, depth: int) -> _Operand:
        left = self._equality(depth)
        while self._tokens.take_if("AND"):
            left = _join("AND", left, self._equality(depth))
        return left

    def _equality(self, depth: int) -> _Operand:
        tokens = self._tokens
        left = self._comparison(depth)
        while symbol := tokens.take_if("=", "<>", "IS"):
            if symbol == "IS":
                is_not = tokens.take_if("NOT")
                tokens.expect("NULL")
                left = _equal(left, _literal(Type.NULL, None))
                left = _negation(left) if is_not else left
                continue
            right = self._comparison(depth)
            _check_equality(left, right)
            left = _equal(left, right)
            left = _negation(left) if symbol == "<>" else left
        return left

    def _comparison(self, depth: int) -> _Operand:
        tokens = self._tokens
        left = self._operand(depth)
        while symbol := tokens.take_if(*_ORDERS, "BETWEEN", "IN", "NOT"):
            is_not = symbol == "NOT"
            if is_not:
                symbol = tokens.take_if("BETWEEN", "IN")
                if symbol is None:
                    raise SqlError(f"expected BETWEEN or IN after NOT, found {tokens.peek()}")
            if symbol == "IN":
                left = _membership(left, self._texts(), is_not=is_not)
            elif symbol == "BETWEEN":
                low = self._operand(depth)
                tokens.expect("AND")
                left = _between(left, low, self._operand(depth), is_not=is_not)
            else:
                left = _ordered(symbol, left, self._operand(depth))
        return left

    def _texts(self) -> frozenset[str]:
        tokens = self._tokens
        tokens.expect("(")
        texts = [self._text()]
        while tokens.take_if(","):
            texts.append(self._text())
        tokens.expect(")")
        return frozenset(texts)

    def _text(self) -> str:
        token = self._tokens.take()
        if token.kind is not Kind.TEXT:
            raise SqlError(f"expected a text in quotes, found {token}")
        return token.value

    def _operand(self, depth: int) -> _Operand:
        signs: list[str] = []
        while sign := self._tokens.take_if("+", "-", "NOT"):
            signs.append(sign)
        operand = self._primary(depth)
        for sign in reversed(signs):
            if sign == "-":
                operand = _minus(operand)
            elif sign == "NOT":
                operand = _negation(_as_condition(operand))
        return operand

    def _primary(self, depth: int) -> _Operand:
        token = self._tokens.take()
        if token.kind is Kind.OPERATOR and token.value == "(":
            if depth >= MAX_DEPTH:
                raise _too_deep()
            inner = self.disjunction(depth + 1)
            self._tokens.expect(")")
            return inner
        if token.kind is Kind.NAME:
            known = self._properties.get(token.value)
            if known is None:
                known = self._properties[token.value] = _property(token.value)
            return known
        literal = _LITERALS.get(token.kind)
        if literal is None or (token.kind is Kind.KEYWORD and token.value not in _CONSTANTS):
            raise SqlError(f"expected a property, a literal or (, found {token}")
        return literal(token)


# Operands


def _property(name: str) -> _Operand:
    def evaluate(properties: Properties) -> str | None:
        return properties.get(name)

    return _Operand(Type.STRING, evaluate, name=name)


def _literal(kind: Type, value: Any) -> _Operand:
    return _Operand(
        kind,
        lambda _: value,
        is_literal=True,
        value=value,
        is_condition=kind in (Type.BOOLEAN, Type.NULL),
    )


def _integer(token: Token) -> _Operand:
    digits = token.value.rstrip("lL")
    if len(digits) > 19 or int(digits) >= 1 << 63:
        raise SqlError(f"{token} does not fit 64 bits")
    value = int(digits)
    return _literal(Type.INTEGER if value < 1 << 31 else Type.LONG, value)


def _double(token: Token) -> _Operand:
    value = float(token.value)
    if value == 0 or value == float("inf"):
        raise SqlError(f"{token} is out of range for a Double (0.0 is not allowed)")
    return _literal(Type.DOUBLE, value)


_CONSTANTS: Final[dict[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}


def _constant(token: Token) -> _Operand:
    value = _CONSTANTS[token.value]
    return _literal(Type.NULL if value is None else Type.BOOLEAN, value)


_LITERALS: Final[dict[Kind, Callable[[Token], _Operand]]] = {
    Kind.INTEGER: _integer,
    Kind.FLOAT: _double,
    Kind.TEXT: lambda token: _literal(Type.STRING, token.value),
    Kind.KEYWORD: _constant,
}


def _minus(operand: _Operand) -> _Operand:
    """Negate a number; anything else becomes null. The result is not a literal."""
    if operand.type not in NUMBERS:
        return _Operand(Type.NULL, lambda _: None)
    value = -operand.value
    return _Operand(operand.type, lambda _: value, value=value)


# Conditions


def _condition(evaluate: Callable[[Properties], bool | None], *operands: _Operand) -> _Operand:
    depth = max(operand.depth for operand in operands) + 1
    if depth > MAX_DEPTH:
        raise _too_deep()
    return _Operand(Type.BOOLEAN, evaluate, is_condition=True, depth=depth)


def _too_deep() -> SqlError:
    return SqlError(f"nested more than {MAX_DEPTH} levels deep")


def _as_condition(operand: _Operand) -> _Operand:
    if operand.is_condition:
        return operand
    if operand.name is None:
        raise SqlError(f"{operand} is not a condition")
    name = operand.name
    # A property is a string, never a Boolean.
    return _condition(lambda properties: None if properties.get(name) is None else False, operand)


def _negation(operand: _Operand) -> _Operand:
    inner = operand.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value: bool | None = inner(properties)
        return None if value is None else not value

    return _condition(evaluate, operand)


def _join(word: str, left: _Operand, right: _Operand) -> _Operand:
    """Combine two conditions with AND or OR; a chain becomes one condition of any length."""
    left, right = _as_condition(left), _as_condition(right)
    if left.chain_of == word:
        left.chained.append(right.evaluate)
        left.depth = max(left.depth, right.depth + 1)
        if left.depth > MAX_DEPTH:
            raise _too_deep()
        return left
    chained = [left.evaluate, right.evaluate]
    decisive = word == "OR"

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = not decisive
        for each in chained:
            value: bool | None = each(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    joined = _condition(evaluate, left, right)
    joined.chained, joined.chain_of = chained, word
    return joined


def _check_equality(left: _Operand, right: _Operand) -> None:
    for operand in (left, right):
        if operand.is_literal and operand.value is None:
            raise SqlError("NULL cannot be compared: write IS NULL")
    if left.is_literal and right.is_literal and left.is_condition and not right.is_condition:
        raise SqlError(f"{left} cannot be compared with {right}")


def _equal(left: _Operand, right: _Operand) -> _Operand:
    first, second = left.evaluate, right.evaluate
    compare = comparison(left.type, right.type, by_order=False)

    def evaluate(properties: Properties) -> bool | None:
        one, other = first(properties), second(properties)
        if one is None:
            return True if other is None else None
        return other is not None and compare(one, other) == 0

    return _condition(_equal_to_text(left, right) or evaluate, left, right)


def _equal_to_text(left: _Operand, right: _Operand) -> Callable[[Properties], bool | None] | None:
    """Return the fast path for the most common case, `property = 'text'`; None for others."""
    name, text = left.name, right.value
    if name is None or not right.is_literal or right.type is not Type.STRING:
        return None

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else value == text

    return evaluate


_ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def _ordered(symbol: str, left: _Operand, right: _Operand) -> _Operand:
    for operand in (left, right):
        if operand.is_condition or (operand.is_literal and operand.type not in NUMBERS):
            raise SqlError(f"{operand} cannot be compared by {symbol}: only numbers can")
    first, second = left.evaluate, right.evaluate
    compare: Comparison = comparison(left.type, right.type, by_order=True)
    holds = _ORDERS[symbol]

    def evaluate(properties: Properties) -> bool | None:
        one = first(properties)
        if one is None:
            return None
        other = second(properties)
        return None if other is None else holds(compare(one, other), 0)

    return _condition(_ordered_by_integer(symbol, left, right) or evaluate, left, right)


def _ordered_by_integer(
    symbol: str, left: _Operand, right: _Operand
) -> Callable[[Properties], bool | None] | None:
    """Return the fast path for `property > 5`; None for other comparisons."""
    name, number, holds = left.name, right.value, _ORDERS[symbol]
    if name is None or right.type not in (Type.INTEGER, Type.LONG):
        return None
    read = READERS[right.type]

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else holds(read(value), number)

    return evaluate


def _between(value: _Operand, low: _Operand, high: _Operand, *, is_not: bool) -> _Operand:
    if is_not:
        return _join("OR", _ordered("<", value, low), _ordered(">", value, high))
    joined = _join("AND", _ordered(">=", value, low), _ordered("<=", value, high))
    if low.is_literal and high.is_literal:
        order = comparison(low.type, high.type, by_order=True)(low.value, high.value)
        if order > 0:
            raise SqlError(f"BETWEEN {low} AND {high}: the lower bound exceeds the upper one")
    return joined


def _membership(operand: _Operand, texts: frozenset[str], *, is_not: bool) -> _Operand:
    if operand.name is None:
        raise SqlError(f"IN applies to properties, not to {operand}")
    name = operand.name

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in texts) is not is_not

    return _condition(evaluate, operand)
