"""Expressions and properties that Java's SQL92 filter evaluates; see capture.py.

Imports nothing of pyromq. Random expressions come from a fixed seed.
"""

from __future__ import annotations

import random

SETS: list[dict[str, str]] = [
    {},
    {"a": "5"},
    {"a": "5", "b": "5"},
    {"a": "5.0", "b": "5"},
    {"a": "-7", "b": "x"},
    {"a": "hello", "b": "hello"},
    {"a": "true", "b": "TRUE", "c": "false"},
    {"a": "3000000000", "b": "2147483647", "c": "-2147483648"},
    {"a": "9007199254740993", "b": "9007199254740992", "c": "9223372036854775807"},
    {"a": "NaN", "b": "Infinity", "c": "-Infinity"},
    {"a": "-0.0", "b": "0.0", "c": "0"},
    {"a": " 5", "b": "5 ", "c": "\t5\n"},
    {"a": "5d", "b": "5f", "c": "5L"},
    {"a": "0x1p3", "b": "0X1.8P1", "c": "0x5"},
    {"a": "+5", "b": "+5.5", "c": "--5"},
    {"a": "1e3", "b": "1E-3", "c": "1e999"},
    {"a": ".5", "b": "5.", "c": "."},
    {"a": "NaNd", "b": "nan", "c": "infinity"},
    {"a": "\u0665", "b": "\uff15", "c": "\U0001d7d3"},
    {"a": "it's", "b": "''", "c": "'"},
    {"a": "5_000", "b": "0005", "c": "5,0"},
    {"a": "\u00e4\u952e\U0001f680", "b": "\u00e4", "c": "TAG"},
    {"A": "5", "TRUE_": "1", "$x": "2", "_y": "3", "a1": "4"},
    {"a": "1", "b": "2", "c": "3", "d": "4"},
    {"a": "10", "b": "9", "c": "8", "d": "abc"},
    {"a": "0x1p9999", "b": "-0x1p9999", "c": "0x.8p1f"},
    {"a": "9223372036854775808", "b": "-9223372036854775808", "c": "1e18"},
]

FIXED: list[str] = [
    # Operands and types
    "a = 5", "a <> 5", "a > 5", "a >= 5", "a < 5", "a <= 5", "5 = a", "5 < a", "5 >= a",
    "a = 5.0", "a > 5.5", "a = '5'", "a <> '5'", "'5' = a", "a = b", "a <> b", "a > b", "a <= b",
    "b < a", "a = c", "a < c", "c = a", "b = c", "b > c", "a = a", "a <> a", "a >= a",
    "a = TRUE", "a = FALSE", "TRUE = a", "FALSE = a", "b = true", "c = FaLsE", "a <> TRUE",
    "a = 5L", "a = 5l", "a > 3000000000", "a = 3000000000", "a = 3000000000L", "a < 2147483648",
    "a = 2147483647", "b = 2147483647", "c = -2147483648", "c = -2147483647", "c < -1",
    "a = 9223372036854775807", "a = 9223372036854775808", "a = -9223372036854775808",
    "c = 9223372036854775807", "a = 9007199254740993", "a = 9007199254740992.0",
    "9007199254740993 = 9007199254740992.0", "9007199254740993 > 9007199254740992.0",
    "a > 1e308", "a > 1e309", "a = 1e-400", "a = 0.0", "a = 0", "a > 0", "a = .5", "a = 5.",
    "a = 5.e1", "a < .5e1", "a = 1e3", "a = 1E+3", "a >= 1e-3", "a = 0.1", "a = 00", "a = 007",
    "a = 0l", "a = 5x", "a = 5e", "a = 1.5.5", "a = 12L3",
    "-a = 5", "-a IS NULL", "-a > 5", "+a = 5", "++a = 5", "a = +5", "a = -5", "a = --5",
    "a = - -5", "a = -+5", "a > -7", "a >= -7", "a = -'5'", "a = -TRUE", "a = -NULL", "-5 = a",
    "- -5 = a", "a = -(5)", "a = -(-5)", "a = -b", "-a = -b", "a < -0", "a = -.5",
    "1 = 1", "1 = 2", "1 = 1.0", "1.0 = 1", "1 = '1'", "'1' = 1", "1 = 'x'", "'x' = 1",
    "1 = TRUE", "TRUE = 1", "TRUE = TRUE", "TRUE = FALSE", "'true' = TRUE", "TRUE = 'true'",
    "'x' = 'x'", "'x' = 'y'", "'x' <> 'y'", "'a' > 'b'", "1 > 2", "2 > 1", "1 > 'x'", "TRUE > 1",
    "1 < TRUE", "NULL = 1", "1 = NULL", "NULL = NULL", "NULL <> a", "a = NULL", "a > NULL",
    "a > TRUE", "a > 'x'", "'x' < a", "a > '5'", "(a) > 5", "a > (5)", "a > (b)", "(a = 5) > 1",
    # Null
    "a IS NULL", "a IS NOT NULL", "a is null", "a Is nOt NuLl", "NOT a IS NULL", "(a) IS NULL",
    "NOT (a IS NULL)", "missing IS NULL", "missing IS NOT NULL", "5 IS NULL", "NULL IS NULL",
    "NULL IS NOT NULL", "TRUE IS NULL", "'x' IS NOT NULL", "(a = 5) IS NULL", "(a > b) IS NOT NULL",
    "a IS NULL IS NULL", "a IS NULL = TRUE", "a = 5 IS NULL", "a IS TRUE", "a IS", "a IS NOT",
    "IS NULL", "a IS NULL NULL", "missing = missing", "missing <> missing", "a = missing",
    "missing = a", "missing > 1", "missing IN ('a')", "missing NOT IN ('a')", "missing",
    "NOT missing", "missing = 5 OR a = 5", "missing = 5 AND a = 5", "missing = 5 OR a <> 5",
    "missing = 5 AND a <> 5", "missing = '5'", "missing BETWEEN 1 AND 2",
    # Logic
    "TRUE", "FALSE", "NULL", "NOT TRUE", "NOT FALSE", "NOT NULL", "NOT NOT TRUE", "a", "NOT a",
    "NOT NOT a", "a AND b", "a OR b", "a OR TRUE", "a AND FALSE", "TRUE AND NULL", "NULL AND TRUE",
    "FALSE AND NULL", "NULL AND FALSE", "TRUE OR NULL", "NULL OR TRUE", "FALSE OR NULL",
    "NULL OR FALSE", "NULL OR NULL", "TRUE AND TRUE AND NULL AND FALSE", "NOT a = 5", "NOT (a = 5)",
    "NOT a = 5 AND b = 5", "NOT a > 5", "NOT (a > 5)", "NOT 5", "NOT 'x'", "5", "'x'", "5 AND TRUE",
    "a = 5 AND b = 5", "a = 5 OR b = 5", "a = 5 AND b = 5 OR c = 5", "a = 5 OR b = 5 AND c = 5",
    "(a = 5 OR b = 5) AND c = 5", "a = 5 AND (b = 5 OR c = 5)", "a=5 and(b=5)or c='x'",
    "a = 'x' AND b > 1", "b > 1 AND a = 'x'", "b > 1 OR a = 'hello'", "a = 'hello' OR b > 1",
    "a = b = c", "a = 5 = TRUE", "a = 5 <> FALSE", "(a = 5) = (b = 5)", "(a > 5) = (b > 5)",
    "TRUE = (a = 5)", "(a = 5) = 'true'", "'true' = (a = 5)", "(a = 5) = 1", "1 = (a = 5)",
    "(a = 5) = a", "a = (b = 5)", "(a = 5) = NULL", "5 = 5 = 5", "a <> 5 <> TRUE",
    # BETWEEN
    "a BETWEEN 1 AND 10", "a between 5 and 5", "a NOT BETWEEN 1 AND 4", "a BETWEEN 10 AND 1",
    "a NOT BETWEEN 10 AND 1", "a BETWEEN -10 AND -1", "a BETWEEN -1 AND -10", "a BETWEEN b AND c",
    "a NOT BETWEEN b AND c", "a BETWEEN 1 AND b", "a BETWEEN 1.5 AND 5.5", "a BETWEEN 1 AND 5.5",
    "a BETWEEN 'a' AND 'z'", "a BETWEEN 1 AND 'z'", "a BETWEEN NULL AND 5", "a BETWEEN 1 AND NULL",
    "a NOT BETWEEN NULL AND 5", "a BETWEEN TRUE AND FALSE", "a BETWEEN FALSE AND TRUE",
    "5 BETWEEN a AND b", "5 BETWEEN 1 AND 10", "'x' BETWEEN 1 AND 2", "TRUE BETWEEN 1 AND 2",
    "a BETWEEN 1 AND 10 AND b = 5", "a BETWEEN 1 AND 10 OR b = 5", "a BETWEEN 1", "a BETWEEN 1 AND",
    "a BETWEEN (1) AND (10)", "a BETWEEN 1 OR 2", "NOT a BETWEEN 1 AND 10",
    "NOT (a BETWEEN 1 AND 10)", "a BETWEEN 1 AND 10 = TRUE", "a BETWEEN 1 AND 10 IS NULL",
    "a BETWEEN 3000000000 AND 9223372036854775807",
    "a BETWEEN 9007199254740993 AND 9007199254740992.0",
    "a BETWEEN 0 AND 0", "a BETWEEN 1 AND 2 BETWEEN 1 AND 2",
    # IN
    "a IN ('5')", "a IN ('5', 'hello')", "a NOT IN ('5', 'hello')", "a in('a','b','c','d','e','5')",
    "a NOT IN ('a','b','c','d','e','5')", "a IN (5)", "a IN ()", "a IN ('5',)", "a IN '5'",
    "a IN ('5'",
    "a IN ('5' 'x')", "'a' IN ('a')", "5 IN ('5')", "(a) IN ('5')", "NOT a IN ('5')",
    "NOT (a IN ('5'))",
    "a IN ('')", "a IN ('it''s')", "a IN ('5') = TRUE", "a IN ('5') AND b = 5", "a NOT ('5')",
    "a NOT",
    "a NOT NULL", "(a = 5) IN ('true')", "-a IN ('5')", "+a IN ('5')", "a IN ('5') IN ('5')",
    "a IN (NULL)", "a IN ('5') IS NULL",
    # Words
    "a = 'it''s'", "b = ''''''", "c = ''''", "a = ''", "a = '''", "a = 'x", "a = \"5\"", "a == 5",
    "a != 5", "a <= = 5", "a =< 5", "a >< 5", "a < > 5", "a := 5", "a = 5;", "a = 5 ;", "a = 5 b",
    "a = 5 b = 5", "a = 5)", "(a = 5", "((a = 5))", "()", "", " ", "a =", "= 5", "AND", "a AND",
    "OR a",
    "a = 5 AND AND b = 5", "a = 5 -- x", "a = 5 -- x\n", "a = 5 -- x\nAND b = 5",
    "a = 5 -- x\r\nAND b = 5",
    "a = 5 -- x\rAND b = 5", "a = 5 /* x */ AND b = 5", "a /**/ = /***/ 5", "a = /* * / ** */ 5",
    "a = 5 /* x", "/* x */", "-- x\na = 5", "-- a = 5", "a = 5 /", "a = 5 AND /", "a\t=\n5\f",
    "a\u00a0= 5",
    "a\x0b= 5", "\u00e4 = 5", "a = '\u00e4\u952e\U0001f680'", "b = '\u00e4'", "a LIKE '5'",
    "a LIKE '5' OR b",
    "A = 5", "A = '5'", "$x = 2", "_y > 2", "a1 = 4", "TRUE_ = 1", "1a = 4", "a-1 = 4", "a - 1 = 4",
    "a + 1 = 4", "a + 1", "a.b = 5", "a = 5.5.5", "a = 0x10", "a = 5 = ", "a NOT b", "NOTa = 5",
    "not(a)",
    "a=5AND b=5", "a='5'AND b='5'", "a>5", "a>=-7", "a<-5", "a<>-5", "a--5", "a CONTAINS '5'",
    "a STARTSWITH 'h'", "now() > 5", "\u212aEY = 5", "a \u0131n ('5')",
    "a = 5 AND b IS NULL AND c IS NULL",
    "(((((((((((((((((((((((((((((((((((((((((a = 5)))))))))))))))))))))))))))))))))))))))))",
    "NOT NOT NOT NOT NOT NOT NOT NOT (a = 5)", "a = 5" + " AND a = 5" * 200,
    "a = 6" + " OR a = 5" * 200,
    "a = 5" + " = TRUE" * 40, "a IS NULL" + " IS NULL" * 40,
]  # fmt: skip

RANDOM = 260
_LITERALS = (
    "5", "-7", "0", "5.0", "'5'", "'hello'", "''", "TRUE", "FALSE", "NULL", "3000000000", "1e3",
    "9",
    "'true'", "2.5e0", "10L",
)  # fmt: skip


def cases() -> list[str]:
    """Return all expressions without duplicates."""
    chance = random.Random(497)
    made = [_condition(chance, 4) for _ in range(RANDOM)]
    made += [_damaged(chance, _condition(chance, 2)) for _ in range(RANDOM // 4)]
    return list(dict.fromkeys(FIXED + made))


def _condition(chance: random.Random, depth: int) -> str:
    kind = chance.randrange(9 if depth > 0 else 6)
    name = chance.choice("aabbcdx")
    match kind:
        case 0 | 1:
            operator = chance.choice(("=", "<>", "=", ">", ">=", "<", "<="))
            return f"{_operand(chance)} {operator} {_operand(chance)}"
        case 2:
            operator = chance.choice(("=", "<>", ">", ">=", "<", "<="))
            return f"{name} {operator} {chance.randint(-8, 12)}"
        case 3:
            negated = chance.choice(("", "NOT "))
            return f"{name} {negated}BETWEEN {_operand(chance)} AND {_operand(chance)}"
        case 4:
            texts = ", ".join(
                chance.sample(("'5'", "'hello'", "'x'", "'10'", "'1'"), chance.randint(1, 4))
            )
            return f"{name} {chance.choice(('', 'NOT '))}IN ({texts})"
        case 5:
            return f"{name} IS {chance.choice(('', 'NOT '))}NULL"
        case 6:
            return f"NOT ({_condition(chance, depth - 1)})"
        case 7:
            return f"({_condition(chance, depth - 1)})"
        case _:
            parts = [_condition(chance, depth - 1) for _ in range(chance.randint(2, 3))]
            return chance.choice((" AND ", " OR ", " or ", " = ")).join(parts)


def _operand(chance: random.Random) -> str:
    if chance.random() < 0.55:
        return chance.choice("aabbcdx")
    return chance.choice(("", "", "", "-", "+")) + chance.choice(_LITERALS)


def _damaged(chance: random.Random, text: str) -> str:
    """Yield variants with one word omitted, doubled or replaced."""
    words = text.split(" ")
    at = chance.randrange(len(words))
    other = chance.choice(
        ("", words[at] + " " + words[at], "AND", "NOT", "(", ")", "5", "'x'", "?")
    )
    words[at] = other
    return " ".join(words)
