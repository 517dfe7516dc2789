from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.broker.state.transactions import TransactionTable
from tests.support.examples import examples


def table(half_offset: int = 0, op_offset: int = 0, **arguments: Any) -> TransactionTable:
    begun = TransactionTable(**arguments)
    begun.begin(half_offset, op_offset)
    return begun


def end(transactions: TransactionTable, half: int, origin: int | None = None) -> list[int]:
    """End a transaction and store its ends."""
    named = transactions.end(half, half if origin is None else origin)
    for offset in named:
        transactions.end_stored(offset)
    return named


def offsets(transactions: TransactionTable) -> tuple[int, int]:
    return transactions.half_offset, transactions.op_offset


def test_both_offsets_advance_over_finished_halves() -> None:
    transactions = table(10, 100)
    assert end(transactions, 11) == [11]
    assert offsets(transactions) == (10, 100)
    assert end(transactions, 13) == [13]
    assert end(transactions, 10) == [10]
    # 11 and 10 are finished, but 13 is between them in the queue of ends.
    assert offsets(transactions) == (12, 101)
    end(transactions, 12)
    assert offsets(transactions) == (14, 104)


def test_the_next_open_half_is_found() -> None:
    transactions = table(10)
    end(transactions, 10)
    end(transactions, 12)
    assert [transactions.next_open(start) for start in (0, 11, 12, 13, 50)] == [11, 11, 13, 13, 50]
    assert [transactions.is_open(half) for half in (9, 10, 11, 12, 13)] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_an_end_is_remembered() -> None:
    transactions = table(10)
    assert not transactions.is_ended(10, 10)
    end(transactions, 10)
    assert transactions.is_ended(10, 10)
    assert not transactions.is_ended(9, 9), "nothing is known of what was before"


def test_a_limited_number_of_ends_is_remembered() -> None:
    transactions = table(remembered=4)
    for half in range(20):
        end(transactions, half)
    assert transactions.half_offset == 20
    assert transactions.is_ended(19, 19)
    assert transactions.is_ended(16, 16)
    assert not transactions.is_ended(0, 0)
    end(transactions, 0)  # again, as nothing is known of it
    assert offsets(transactions) == (20, 21)


def test_a_half_that_was_put_back_ends_with_the_first_one() -> None:
    transactions = table()
    transactions.put_back(0, 0, 5)
    assert offsets(transactions) == (1, 0)
    transactions.put_back(5, 0, 7)
    assert end(transactions, 0, 0) == [7, 0]
    assert transactions.is_ended(7, 0)
    assert transactions.is_ended(5, 0)
    assert [half for half in range(9) if transactions.is_open(half)] == [1, 2, 3, 4, 6, 8]


def test_the_first_one_ends_with_a_half_that_was_put_back() -> None:
    transactions = table()
    transactions.put_back(0, 0, 5)
    assert end(transactions, 5, 0) == [5, 0]
    assert transactions.is_ended(0, 0)


def test_an_abandoned_half_can_still_be_ended() -> None:
    transactions = table()
    transactions.put_back(0, 0, 1)
    transactions.give_up(1, 0)
    assert offsets(transactions) == (2, 0)
    assert not transactions.is_ended(0, 0)
    assert end(transactions, 0, 0) == [0]
    assert transactions.is_ended(0, 0)


def test_halves_that_have_expired_are_passed() -> None:
    transactions = table(3, 3)
    end(transactions, 5)
    transactions.pass_to(5)
    assert offsets(transactions) == (6, 4)
    transactions.pass_to(1000)
    assert offsets(transactions) == (1000, 4)
    transactions.pass_to(7)
    assert offsets(transactions) == (1000, 4)
    end(transactions, 1001)
    assert not transactions.is_open(1001)
    assert offsets(transactions) == (1000, 4)
    end(transactions, 1000)
    assert offsets(transactions) == (1002, 6)


def test_a_kill_between_putting_back_and_saving_leaves_one_half() -> None:
    transactions = table(3)
    transactions.found_again(6, 3)
    assert not transactions.is_open(3)
    transactions.found_again(8, 3)
    assert not transactions.is_open(6)
    assert transactions.is_open(8)
    assert transactions.half_offset == 4
    assert end(transactions, 3, 3) == [8, 3]


def test_a_saved_end_covers_halves_in_between() -> None:
    """Killed after the first half was passed and the third ended, before the second was passed."""
    transactions = table(1)
    for half in (2, 0):
        transactions.end_stored(half)
    assert transactions.is_open(1)
    assert transactions.is_ended(1, 0)
    assert offsets(transactions) == (1, 0)


def test_begin_resets_the_table() -> None:
    transactions = table()
    transactions.put_back(0, 0, 1)
    end(transactions, 1, 0)
    transactions.begin(1, 0)
    assert transactions.is_open(1)
    assert end(transactions, 1, 0) == [1, 0]


@settings(max_examples=examples(200))
@given(st.data())
def test_a_table_is_like_a_plain_list_of_halves(data: st.DataObject) -> None:
    """Compare any sequence of events with plain sets, including restarts at any time."""
    transactions = table(remembered=3)
    halves = 0
    origin_of: dict[int, int] = {}
    open_halves: set[int] = set()
    ends: list[int] = []
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["send", "send", "end", "end", "back", "give up"]))
        if action == "send":
            origin_of[halves] = halves
            open_halves.add(halves)
            halves += 1
        elif open_halves:
            half = data.draw(st.sampled_from(sorted(open_halves)))
            origin = origin_of[half]
            assert not transactions.is_ended(half, origin)
            open_halves.discard(half)
            if action == "end":
                named = transactions.end(half, origin)
                assert named == sorted({half, origin}, reverse=True)
                ends += named
                for offset in named:
                    transactions.end_stored(offset)
            elif action == "back":
                transactions.put_back(half, origin, halves)
                origin_of[halves] = origin
                open_halves.add(halves)
                halves += 1
            else:
                transactions.give_up(half, origin)
        first = min(open_halves, default=halves)
        assert transactions.half_offset == first
        done = next((i for i, half in enumerate(ends) if half >= first), len(ends))
        assert transactions.op_offset == done
        assert [h for h in range(halves) if transactions.is_open(h)] == sorted(open_halves)
    restarted = table(transactions.half_offset, transactions.op_offset)
    for half in ends[transactions.op_offset :]:
        restarted.end_stored(half)
    passed = set(range(halves)) - open_halves - set(ends)
    assert {h for h in range(halves) if restarted.is_open(h)} <= open_halves | passed
    assert restarted.half_offset <= transactions.half_offset
