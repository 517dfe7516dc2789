"""An exhaustive search of the rules: every behaviour of three nodes within bounds.

The model is smaller than the core. Entries are their terms, and a message is a fact that stays
true: a leader's log only grows within its term, so "a push of term t and index i is in flight"
follows from the leader's log, and any push may arrive late, twice, or never. Time, crashes without
loss and lost messages need no action of their own: they are actions that never happen. Each node
has its own `Rules`, so that mixed groups can be searched.

A state is (nodes, terms, chosen):

- a node is (term, vote, votes, follows, log): `votes` is a bit mask while it is a candidate;
  `follows` is 0, 1 (follows the leader of its term), 2 (and its log is in step) or 3 (is a
  candidate again, with a log in step);
- a term is None or (leader, log, committed, acked, found), with a number for each node in the last
  two: entries that the leader counts, and a bit mask of the indexes where it may send a TRUNCATE;
- chosen has (entry, term of the commit) for every entry that a node promised to keep.

`search` goes breadth first, so that a violation comes with a shortest trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from typing import Final

from pyromq.raft.member import CommitRule

NODES: Final = (0, 1, 2)
NAMES: Final = "ABC"

Log = tuple[int, ...]
Node = tuple[int, int, int, int, Log]
Term = tuple[int, Log, int, tuple[int, ...], tuple[int, ...]] | None
Chosen = tuple[tuple[int, int], ...]
State = tuple[tuple[Node, ...], tuple[Term, ...], Chosen]

CANDIDATE: Final = 0
FOLLOWS: Final = 1
IN_STEP: Final = 2
LEFT_IN_STEP: Final = 3


@dataclass(frozen=True)
class Rules:
    """The rules of one node; the defaults are ours."""

    commit: CommitRule = CommitRule.NO_TERM_BETWEEN
    checks_term_of_pushes: bool = True
    truncates_after_compare: bool = True
    #: Which commits of this node, as leader, must hold: all, or those of entries of its term.
    promises: str = "all"


#: Java's rules; the promise is that everything committed stays.
JAVA: Final = Rules(CommitRule.COUNTING, False, False)
OURS: Final = Rules()


@dataclass(frozen=True)
class Bounds:
    """How far the search goes."""

    max_term: int = 3
    max_entries: int = 1
    max_states: int = 10_000_000


@dataclass(frozen=True)
class Violation:
    """A property that does not hold, and the steps that lead there."""

    property: str
    trace: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What a search found."""

    states: int
    violation: Violation | None
    is_complete: bool


class BrokenError(Exception):
    """Raised by a step that breaks a property."""


def search(group: tuple[Rules, ...], bounds: Bounds) -> Result:
    """Visit every state, or stop at the first violation."""
    model = Model(group, bounds)
    start = model.start()
    parents: dict[State, tuple[State, str] | None] = {start: None}
    level = [start]
    while level:
        following: list[State] = []
        for state in level:
            steps = model.steps(state)
            while True:
                try:
                    label, successor = next(steps)
                except StopIteration:
                    break
                except BrokenError as error:
                    trace = tuple(_trace(model, parents, state))
                    found = Violation(error.args[0], trace)
                    return Result(len(parents), found, is_complete=False)
                canonical = model.canonical(successor)
                if canonical not in parents:
                    parents[canonical] = (state, label)
                    following.append(canonical)
        if len(parents) > bounds.max_states:
            return Result(len(parents), None, is_complete=False)
        level = following
    return Result(len(parents), None, is_complete=True)


def _trace(model: Model, parents: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    """Return the steps to a state; they are taken again, so that every node keeps its name."""
    path = [state]
    while (parent := parents[path[-1]]) is not None:
        path.append(parent[0])
    labels = list[str]()
    current = path.pop()
    while path:
        wanted = path.pop()
        label, current = next(
            (label, successor)
            for label, successor in model.steps(current)
            if model.canonical(successor) == wanted
        )
        labels.append(f"{label:<50} {describe(current)}")
    try:
        for _ in model.steps(current):
            pass
    except BrokenError as error:
        labels.append(error.args[1])
    return labels


def describe(state: State) -> str:
    """Return terms and logs of the nodes."""
    return ", ".join(
        f"{NAMES[each]} t{node[0]} {list(node[4])}" for each, node in enumerate(state[0])
    )


class Model:
    """The steps of a group."""

    def __init__(self, group: tuple[Rules, ...], bounds: Bounds) -> None:
        self._group = group
        self._bounds = bounds
        #: Nodes with the same rules are next to each other: `canonical` sorts by kind first.
        self._kinds = [list(dict.fromkeys(group)).index(rules) for rules in group]
        assert self._kinds == sorted(self._kinds)

    def start(self) -> State:
        """Return the state of three new nodes."""
        node: Node = (0, -1, 0, CANDIDATE, ())
        return ((node,) * 3, (None,) * (self._bounds.max_term + 1), ())

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step from a state, with its name."""
        for each in NODES:
            yield from self._elect(state, each)
        for term, lead in enumerate(state[1]):
            if lead is None:
                continue
            if _is_active(state, term, lead[0]):
                yield from self._lead(state, term)
            for follower in NODES:
                if follower != lead[0]:
                    yield from self._replicate(state, term, follower)

    # Elections.

    def _elect(self, state: State, me: int) -> Iterator[tuple[str, State]]:
        nodes, terms, chosen = state
        term, vote, votes, follows, log = nodes[me]
        first = term if vote == -1 else term + 1
        for higher in range(first, self._bounds.max_term + 1):
            was_in_step = higher == term and follows in (IN_STEP, LEFT_IN_STEP)
            stands: Node = (higher, me, 1 << me, LEFT_IN_STEP if was_in_step else CANDIDATE, log)
            yield f"{NAMES[me]} becomes a candidate of term {higher}", _with_node(state, me, stands)
        if votes:
            if votes.bit_count() >= 2:
                label = f"{NAMES[me]} wins term {term}"
                if terms[term] is not None:
                    raise BrokenError("election safety", label)
                for index, (entry, committed_in) in enumerate(chosen):
                    if committed_in < term and (index >= len(log) or log[index] != entry):
                        raise BrokenError("leader completeness", label)
                leads: Node = (term, me, 0, CANDIDATE, log)
                lead: Term = (me, log, 0, (0, 0, 0), (0, 0, 0))
                yield label, _with_term(_with_node(state, me, leads), term, lead)
            for voter in NODES:
                if voter != me:
                    yield from self._vote(state, voter, me)
        for later in range(term, self._bounds.max_term + 1):
            other = terms[later]
            if other and other[0] != me and (later > term or follows in (CANDIDATE, LEFT_IN_STEP)):
                was_in_step = later == term and follows == LEFT_IN_STEP
                joined = IN_STEP if was_in_step else FOLLOWS
                joins: Node = (later, vote if later == term else -1, 0, joined, log)
                label = f"{NAMES[me]} follows {NAMES[other[0]]} of term {later}"
                yield label, _with_node(state, me, joins)

    def _vote(self, state: State, voter: int, candidate: int) -> Iterator[tuple[str, State]]:
        term, vote, _, follows, log = state[0][voter]
        wanted, _, votes, _, other = state[0][candidate]
        if (_last(other), len(other)) < (_last(log), len(log)) or wanted < term:
            return
        if wanted == term and vote != -1:
            return
        voted: Node = (wanted, candidate, 0, follows if wanted == term else CANDIDATE, log)
        counted: Node = (wanted, candidate, votes | 1 << voter, state[0][candidate][3], other)
        after = _with_node(_with_node(state, voter, voted), candidate, counted)
        yield f"{NAMES[voter]} votes for {NAMES[candidate]} in term {wanted}", after

    # Leaders.

    def _lead(self, state: State, term: int) -> Iterator[tuple[str, State]]:
        lead = state[1][term]
        assert lead is not None
        me, log, committed, acked, found = lead
        if len(log) < self._bounds.max_entries:
            node = state[0][me]
            longer = (*log, term)
            after = _with_node(state, me, (*node[:4], longer))
            after = _with_term(after, term, (me, longer, committed, acked, found))
            yield f"{NAMES[me]} appends an entry in term {term}", after
        held = sorted((len(log), *(acked[each] for each in NODES if each != me)))
        for count in range(held[1], committed, -1):
            if self._may_commit(me, term, log, count, held[0]):
                label = f"{NAMES[me]} commits {list(log[:count])} in term {term}"
                chosen = self._choose(state[2], me, term, log[:count], label)
                nodes, terms, _ = _with_term(state, term, (me, log, count, acked, found))
                yield label, (nodes, terms, chosen)
                break

    def _may_commit(self, me: int, term: int, log: Log, count: int, by_all: int) -> bool:
        rule = self._group[me].commit
        if rule is CommitRule.COUNTING:
            return True
        if rule is CommitRule.OWN_TERM:
            return log[count - 1] == term
        return log[count - 1] >= term - 1 or count <= by_all

    def _choose(self, chosen: Chosen, me: int, term: int, log: Log, label: str) -> Chosen:
        if self._group[me].promises == "nothing":
            return chosen
        if self._group[me].promises == "own term" and log[-1] != term:
            return chosen
        if any(entry != known[0] for entry, known in zip(log, chosen, strict=False)):
            raise BrokenError("state-machine safety", label)
        return chosen + tuple((entry, term) for entry in log[len(chosen) :])

    # Replication.

    def _replicate(self, state: State, term: int, follower: int) -> Iterator[tuple[str, State]]:
        lead = state[1][term]
        assert lead is not None
        me, lead_log, committed, acked, _ = lead
        my_term, vote, votes, follows, log = state[0][follower]
        if follows not in (FOLLOWS, IN_STEP):
            return
        is_current = my_term == term
        is_strict = self._group[follower].checks_term_of_pushes
        pair = f"{NAMES[me]} to {NAMES[follower]} in term {term}"
        if _is_active(state, term, me) and (is_current or not is_strict):
            yield from self._compare(state, term, follower, pair)
        if is_current:
            yield from self._truncate(state, term, follower, pair)
        index = len(log)
        accepts = acked[follower] and (follows == IN_STEP or not is_strict)
        if accepts and is_current and index < len(lead_log):
            longer: Node = (my_term, vote, votes, follows, (*log, lead_log[index]))
            count = 0 if self._ignores(lead, follower) else index + 1
            after = _with_term(state, term, _acked(lead, follower, count))
            yield f"APPEND {index} from {pair}", self._written(after, follower, longer, pair)
        if accepts and committed and (is_current or (my_term < term and not is_strict)):
            self._check_served(state, log[:committed], f"COMMIT from {pair}", me)

    def _compare(
        self, state: State, term: int, follower: int, pair: str
    ) -> Iterator[tuple[str, State]]:
        lead = state[1][term]
        assert lead is not None
        me, lead_log, _, acked, _ = lead
        log = state[0][follower][4]
        # Our leader never compares below what a follower has acknowledged to it.
        first = max(0, acked[follower] - 1) if self._group[me].truncates_after_compare else 0
        for index in range(first, len(lead_log)):
            is_equal = index < len(log) and log[index] == lead_log[index]
            if not self._may_compare(state, term, follower, index):
                continue
            is_end = index == len(log) - 1
            if is_equal and is_end and not self._group[me].truncates_after_compare:
                after = _acked(lead, follower, index + 1)
                yield f"COMPARE {index} succeeds from {pair}", _with_term(state, term, after)
            elif is_equal or (index == 0 and (not log or log[0] != lead_log[0])):
                after = self._found(lead, follower, index)
                yield f"COMPARE {index} from {pair}", _with_term(state, term, after)
            if is_equal and acked[follower] and not self._ignores(lead, follower):
                # A late or repeated APPEND.
                after = _acked(lead, follower, index + 1)
                label = f"APPEND {index}, held already, from {pair}"
                yield label, _with_term(state, term, after)

    def _ignores(self, lead: Term, follower: int) -> bool:
        """Whether the leader ignores answers to what it sent before a COMPARE; Java's does not.

        With our followers `found` has late copies too, and nothing is cut: no need to know.
        """
        assert lead is not None
        is_strict = self._group[follower].checks_term_of_pushes
        is_comparing = self._group[lead[0]].truncates_after_compare and bool(lead[4][follower])
        return is_comparing and not is_strict

    def _may_compare(self, state: State, term: int, follower: int, index: int) -> bool:
        """Whether a leader that compares from its end down can arrive at this index."""
        lead = state[1][term]
        assert lead is not None
        me, lead_log, _, acked, _ = lead
        _, _, _, follows, log = state[0][follower]
        after = index + 1
        if after >= min(len(log), len(lead_log)) or log[after] != lead_log[after]:
            return True
        # Both hold the next entry: an APPEND in flight arrived after the leader had looked there.
        if self._group[follower].checks_term_of_pushes and follows == IN_STEP:
            return True
        return not self._group[me].truncates_after_compare and acked[follower] > after

    def _found(self, lead: Term, follower: int, index: int) -> Term:
        """Let the leader send TRUNCATE; only our followers withstand late copies of older ones."""
        assert lead is not None
        me, log, committed, acked, found = lead
        keeps = self._group[follower].checks_term_of_pushes
        bits = (found[follower] if keeps else 0) | 1 << index
        return me, log, committed, acked, _with(found, follower, bits)

    def _truncate(
        self, state: State, term: int, follower: int, pair: str
    ) -> Iterator[tuple[str, State]]:
        lead = state[1][term]
        assert lead is not None
        me, lead_log, committed, acked, found = lead
        my_term, vote, votes, follows, log = state[0][follower]
        is_strict = self._group[follower].checks_term_of_pushes
        for index in range(len(lead_log)):
            if not found[follower] >> index & 1 or index > len(log):
                continue
            if index < len(log) and log[index] == lead_log[index]:
                kept = log if is_strict and follows == IN_STEP else log[: index + 1]
            else:
                kept = (*log[:index], lead_log[index])
            if not is_strict:
                found = _with(found, follower, 0)
            now = _acked((me, lead_log, committed, acked, found), follower, index + 1)
            after = _with_term(state, term, now)
            written: Node = (my_term, vote, votes, IN_STEP, kept)
            yield f"TRUNCATE {index} from {pair}", self._written(after, follower, written, pair)

    def _written(self, state: State, follower: int, node: Node, pair: str) -> State:
        """Return the state after a follower's write, and check log matching."""
        after = _with_node(state, follower, node)
        for each in NODES:
            other, log = state[0][each][4], node[4]
            if each != follower:
                equal = [mine == theirs for mine, theirs in zip(log, other, strict=False)]
                if any(later and not earlier for earlier, later in pairwise(equal)):
                    raise BrokenError("log matching", f"push from {pair}")
        return after

    def _check_served(self, state: State, log: Log, label: str, leader: int) -> None:
        is_promised = self._group[leader].promises == "all"
        both = zip(log, state[2], strict=False)
        if is_promised and any(entry != known[0] for entry, known in both):
            raise BrokenError("state-machine safety", label)

    # Symmetry.

    def canonical(self, state: State) -> State:
        """Return the same state for all names of the nodes, without facts that cannot matter."""
        nodes, terms, chosen = state
        lowest = min(node[0] for node in nodes)
        if any(terms[:lowest]):
            terms = (None,) * lowest + terms[lowest:]
        keys = [
            (self._kinds[each], node[0], node[3], node[4], node[1] == each, node[1] < 0)
            for each, node in enumerate(nodes)
        ]
        order = sorted(NODES, key=keys.__getitem__)
        groups = list[list[int]]()
        for each in order:
            if groups and keys[groups[-1][0]] == keys[each]:
                groups[-1].append(each)
            else:
                groups.append([each])
        if len(groups) == 3:
            return _renamed(nodes, terms, chosen, order)
        return min(
            (
                _renamed(nodes, terms, chosen, [each for part in parts for each in part])
                for parts in product(*(permutations(part) for part in groups))
            ),
            key=_comparable,
        )


def _comparable(state: State) -> tuple[object, ...]:
    return state[0], tuple(term or () for term in state[1])


def _renamed(
    nodes: tuple[Node, ...], terms: tuple[Term, ...], chosen: Chosen, order: list[int]
) -> State:
    """Return the state with node `order[i]` as node i."""
    if order == [0, 1, 2]:
        return nodes, terms, chosen
    first, second, third = order
    name = [0, 0, 0, -1]  # the last one for no vote
    name[first], name[second], name[third] = 0, 1, 2
    renamed = tuple(
        (
            nodes[each][0],
            name[nodes[each][1]],
            (nodes[each][2] >> first & 1)
            | (nodes[each][2] >> second & 1) << 1
            | (nodes[each][2] >> third & 1) << 2,
            nodes[each][3],
            nodes[each][4],
        )
        for each in order
    )
    return (
        renamed,
        tuple(
            lead
            and (
                name[lead[0]],
                lead[1],
                lead[2],
                (lead[3][first], lead[3][second], lead[3][third]),
                (lead[4][first], lead[4][second], lead[4][third]),
            )
            for lead in terms
        ),
        chosen,
    )


def _is_active(state: State, term: int, leader: int) -> bool:
    return state[0][leader][0] == term


def _last(log: Log) -> int:
    return log[-1] if log else -1


def _with(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _with_node(state: State, at: int, node: Node) -> State:
    nodes, terms, chosen = state
    return (*nodes[:at], node, *nodes[at + 1 :]), terms, chosen


def _with_term(state: State, at: int, term: Term) -> State:
    nodes, terms, chosen = state
    return nodes, (*terms[:at], term, *terms[at + 1 :]), chosen


def _acked(lead: Term, follower: int, count: int) -> Term:
    assert lead is not None
    me, log, committed, acked, found = lead
    return me, log, committed, _with(acked, follower, max(count, acked[follower])), found
