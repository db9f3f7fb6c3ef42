"""Earley's algorithm over the terms of a grammar, for the reference implementation.

Each node of the grammar is a small machine: from a state it may read a symbol, call another node, or end. The algorithm
keeps all ways of reading the input in parallel, as items (node, state, where the node was entered), so any recursion
and any ambiguity are welcome. Source: Earley, "An efficient context-free parsing algorithm" (1970); empty strings as in
Aycock and Horspool, "Practical Earley parsing" (2002).

A ``Distinct`` node ends only where its text repeats nothing, and a ``Label`` node where it decodes to a valid label.
Then it is no longer true that every item can be completed, so a completion is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.testing.derivatives import Algebra, Regex, Special, Symbol
from structgen.testing.node_semantics import ResolvedNode, is_refused_label, order_without_cycle, repeats, resolve

__all__ = ["ItemSet", "Recogniser"]

ItemState: TypeAlias = "int | Regex | PermutationState"
"""How far an item has come: items of a sequence done, repetitions done, items of a permutation, or what is left of a
regular node."""

PermutationState: TypeAlias = "tuple[frozenset[int], int, bool]"
"""The items of a permutation that were used, the number of items so far, and whether a separator is due."""

Item: TypeAlias = "tuple[int, ItemState, ItemSet]"
"""A node, its state, and the position where it was entered."""

_MAX_VISITED = 20_000
"""Positions that one search for a completion may visit."""
_BYTES = tuple(sorted(range(256), key=lambda byte: (b',:}]"'.find(byte), -byte)))
"""In the order in which the search tries them, the last one first: closing marks."""

REGULAR = (ir.Literal, ir.ByteClass, ir.CharClass, ir.SpecialToken, ir.Intersection, ir.Complement, ir.JsonString)
"""Terms that are read symbol by symbol, by derivatives, together with everything below them."""


_ANY = ((0, ir.MAX_CODE_POINT),)


@dataclass(eq=False, slots=True)
class ItemSet:
    """Earley's item set, between two symbols; it never changes once it is made.

    Attributes:
        items: every item that agrees with what was read; none, if nothing can be completed.
        callers: for each node entered here, the items to resume when it ends.
        is_accepting: whether what was read is a string of the grammar.
        text: what was read, a zero byte for each special token.
        following: the positions after symbols, as far as they were needed.
        cuts: bit b is set where bytes b - 1 and b may lead to different positions.
        is_live: a completion exists; not known yet where this is ``None``.
    """

    items: dict[Item, None] = field(default_factory=dict)
    callers: dict[int, list[Item]] = field(default_factory=dict)
    is_accepting: bool = False
    text: bytes = b""
    following: dict[Symbol, ItemSet | None] = field(default_factory=dict)
    cuts: int = 1
    is_live: bool | None = None


class Recogniser:
    """Steps from position to position; ``start`` is where nothing has been read.

    Args:
        grammar: any closed term.
        special: id to text of the special tokens; a token means the same by either.
        algebra: makes the expressions of regular nodes; None: one of its own.

    Raises:
        GrammarError: a reference is unbound, or an intersection, complement or JSON string is recursive.
    """

    def __init__(self, grammar: Grammar, special: Mapping[int, str], algebra: Algebra | None = None) -> None:
        self._special_texts = special
        self._nodes = resolve(grammar)
        self._algebra = Algebra() if algebra is None else algebra
        self._regular: dict[int, Regex] = {}
        self._entered = self._enter_all()
        self._symbols: tuple[Symbol, ...] = (*(Special(text) for text in special.values()), *_BYTES)
        self._judged = {node for node in self._entered if isinstance(self._nodes[node].term, (ir.Distinct, ir.Label))}
        self._nullable = self._least_fixpoint(lambda regex: regex.nullable)
        self._productive = self._least_fixpoint(lambda regex: not self._algebra.is_empty(regex))
        self.start = ItemSet()
        if 0 in self._productive:
            self.start.is_accepting = 0 in self._nullable
            self._close(self.start, [(0, self._entry(0), self.start)])
            if not self._is_live(self.start):
                self.start = ItemSet()

    def special(self, token: int | str) -> Special:
        """The symbol of a special token, given by id or text."""
        return Special(self._special_texts.get(token, token) if isinstance(token, int) else token)

    def step(self, position: ItemSet, symbol: Symbol) -> ItemSet | None:
        """Return the position after ``symbol``, or ``None`` if no string continues with it."""
        following = self._step(position, symbol)
        return following if following is not None and self._is_live(following) else None

    def _step(self, position: ItemSet, symbol: Symbol) -> ItemSet | None:
        if isinstance(symbol, int):  # the first byte of its kind
            symbol = (position.cuts & (2 << symbol) - 1).bit_length() - 1
        if symbol not in position.following:
            position.following[symbol] = self._read(position, symbol)
        return position.following[symbol]

    def _read(self, position: ItemSet, symbol: Symbol) -> ItemSet | None:
        read: list[Item] = []
        for node, state, origin in position.items:
            if isinstance(state, Regex):
                rest = self._algebra.derivative(state, symbol)
                if not self._algebra.is_empty(rest):
                    read.append((node, rest, origin))
        if not read:
            return None
        following = ItemSet(text=position.text + (bytes([symbol]) if isinstance(symbol, int) else b"\0"))
        self._close(following, read)
        return following

    def next_bytes(self, position: ItemSet) -> set[int]:
        """Return the bytes after which :meth:`step` has a position."""
        return {byte for byte in range(256) if self.step(position, byte) is not None}

    def _close(self, here: ItemSet, agenda: list[Item]) -> None:
        """Add to ``here`` the items of ``agenda`` and all that they lead to without reading anything."""
        if self._judged:  # bytes of one kind may differ in what they repeat
            here.cuts = -1
        while agenda:
            item = agenda.pop()
            if item in here.items:
                continue
            here.items[item] = None
            node, state, origin = item
            here.cuts |= state.cuts if isinstance(state, Regex) else 0
            # A node that ends where it was entered read nothing: its callers went on when they called it.
            if origin is not here and self._ends(node, state) and not self._is_refused(node, origin, here):
                agenda.extend(origin.callers.get(node, ()))
                here.is_accepting |= node == 0 and origin is self.start
            for child, after in self._calls(node, state):
                here.callers.setdefault(child, []).append((node, after, origin))
                agenda.append((child, self._entry(child), here))
                if child in self._nullable:
                    agenda.append((node, after, origin))

    # Texts that repeat nothing, and valid labels

    def _is_refused(self, node: int, origin: ItemSet, here: ItemSet) -> bool:
        if node not in self._judged:
            return False
        text, term = here.text[len(origin.text) :], self._nodes[node].term
        return is_refused_label(text, term.kind) if isinstance(term, ir.Label) else repeats(text)

    def _is_live(self, position: ItemSet) -> bool:
        """Search a completion, deeper and deeper; closing marks come first."""
        if not self._judged:
            return True
        depth, fuel = 4, _MAX_VISITED
        while position.is_live is None:
            depth *= 4
            is_cut = False
            stack = [(position, 0)]
            while stack and position.is_live is None:
                here, length = stack.pop()
                if here.is_accepting or here.is_live:
                    position.is_live = True
                elif length == depth:
                    is_cut = True
                elif here.is_live is None and self._has_way_out(here):
                    fuel -= 1
                    if fuel == 0:
                        raise RuntimeError(
                            f"no completion of {position.text!r} was found within {_MAX_VISITED} positions"
                        )
                    found = ((self._step(here, symbol), length + 1) for symbol in self._symbols)
                    stack.extend((after, count) for after, count in found if after is not None)
            if position.is_live is None and not is_cut:
                position.is_live = False
        return position.is_live

    def _has_way_out(self, here: ItemSet) -> bool:
        """Whether some item has callers up to the whole grammar, none of them refused."""
        agenda = [(node, origin) for node, _, origin in here.items]
        seen = set(agenda)
        while agenda:
            node, origin = agenda.pop()
            if self._is_refused(node, origin, here):
                continue
            if node == 0 and origin is self.start:
                return True
            callers = [(caller, outer) for caller, _, outer in origin.callers.get(node, ())]
            agenda += [item for item in callers if item not in seen]
            seen.update(callers)
        return False

    # The nodes as machines

    def _entry(self, node: int) -> ItemState:
        if isinstance(self._nodes[node].term, ir.Permutation):
            return frozenset(), 0, False
        return self._regular.get(node, 0)

    def _ends(self, node: int, state: ItemState) -> bool:
        if isinstance(state, Regex):
            return state.nullable
        if isinstance(state, tuple):
            return self._items_may_end(node, state)
        match self._nodes[node].term:
            case ir.Sequence() as term:
                return state == len(term.items)
            case ir.Repeat() as term:
                return state >= term.min
            case _:
                return state == 1

    def _calls(self, node: int, state: ItemState) -> list[tuple[int, ItemState]]:
        """The nodes with strings that may be called, each with the state to go on in."""
        if isinstance(state, Regex):
            return []
        if isinstance(state, tuple):
            return self._calls_of_items(node, state)
        term, children = self._nodes[node].term, self._nodes[node].children
        match term:
            case ir.Sequence():
                calls = [(child, state + 1) for child in children[state : state + 1]]
            case ir.Repeat():
                # Without an upper bound, repetitions beyond the lower one are equal.
                after = state + 1 if term.max is not None else min(state + 1, term.min)
                calls = [(children[0], after)] if term.max is None or state < term.max else []
            case _:  # a choice, or a term that means its only child
                calls = [(child, 1) for child in children] if state == 0 else []
        return [call for call in calls if call[0] in self._productive]

    # Permutations

    def _items_may_end(self, node: int, state: PermutationState) -> bool:
        term = self._permutation(node)
        used, count, is_after = state
        return (is_after or count == 0) and count >= term.min and used >= set(range(len(term.required)))

    def _calls_of_items(self, node: int, state: PermutationState) -> list[tuple[int, ItemState]]:
        term, children = self._permutation(node), self._nodes[node].children
        *items, rest, separator = children
        used, count, is_after = state
        if is_after:
            return [(separator, (used, count, False))] if self._goes_on(node, used, count) else []
        if count == term.max:
            return []
        free = [(place, item) for place, item in enumerate(items) if place not in used]
        calls: list[tuple[int, ItemState]] = []
        for place, child in [*free, (None, rest)]:
            taken = used if place is None else used | {place}
            # Without an upper bound, items beyond the lower one need not be counted.
            after = count + 1 if term.max is not None else min(count + 1, max(term.min, 1))
            state = taken, after, True
            if child in self._productive and (self._items_may_end(node, state) or self._goes_on(node, taken, after)):
                calls.append((child, state))
        return calls

    def _goes_on(self, node: int, used: frozenset[int], count: int) -> bool:
        """Whether a further item may follow, so that the whole can be completed."""
        term = self._permutation(node)
        *items, rest, separator = self._nodes[node].children
        left = [place for place in range(len(items)) if place not in used and items[place] in self._productive]
        due = [place for place in range(len(term.required)) if place not in used]
        need = max(term.min - count, len(due), 1)
        return (
            separator in self._productive
            and set(due) <= set(left)
            and (rest in self._productive or need <= len(left))
            and (term.max is None or count + need <= term.max)
        )

    def _permutation(self, node: int) -> ir.Permutation:
        term = self._nodes[node].term
        if not isinstance(term, ir.Permutation):
            raise TypeError(f"{type(term).__name__} is no permutation")
        return term

    # What is known of the nodes before reading

    def _enter_all(self) -> list[int]:
        """List the nodes that are not inside a regular node, and note the expressions of the regular ones."""
        known: dict[int, Regex] = {}
        entered = {0: None}
        agenda = [0]
        while agenda:
            node = agenda.pop()
            if _is_regular(self._nodes[node].term):
                self._regular[node] = self._regex(node, known)
                continue
            new = [child for child in self._nodes[node].children if child not in entered]
            entered.update(dict.fromkeys(new))
            agenda.extend(new)
        return list(entered)

    def _regex(self, root: int, known: dict[int, Regex]) -> Regex:
        for node in order_without_cycle(self._nodes, root):
            if node not in known:
                known[node] = self._expression(self._nodes[node], known)
        return known[root]

    def _expression(self, node: ResolvedNode, known: Mapping[int, Regex]) -> Regex:
        algebra = self._algebra
        parts = [known[child] for child in node.children]
        match node.term:
            case ir.Literal(data=data):
                return algebra.word(data)
            case ir.ByteClass(ranges=ranges):
                return algebra.one_of(byte for low, high in ranges for byte in range(low, high + 1))
            case ir.CharClass(ranges=ranges):
                return algebra.character(ranges)
            case ir.SpecialToken(token=token, or_text=True) if token not in self._special_texts.values():
                return algebra.word(str(token).encode())
            case ir.SpecialToken(token=token):
                return algebra.one_of([self.special(token)])
            case ir.Sequence():
                return algebra.concatenation(parts)
            case ir.Choice():
                return algebra.union(parts)
            case ir.Repeat(min=least, max=most):
                return algebra.repetition(parts[0], least, most)
            case ir.Permutation():
                return _spelled_out(algebra, node.term, parts)
            case ir.Intersection():
                return algebra.intersection(parts or [algebra.text])
            case ir.Complement():
                return algebra.complement(parts[0])
            case ir.JsonString():
                return algebra.json_string(parts[0])
            case ir.Budget(characters=int(most)):
                return algebra.intersection([parts[0], algebra.repetition(algebra.character(_ANY), 0, most)])
            case _:
                return parts[0]

    def _least_fixpoint(self, holds: Callable[[Regex], bool]) -> set[int]:
        """The nodes with a property that all items of a sequence must have, and any one item of a choice."""
        found: set[int] = set()
        before = -1
        while len(found) > before:
            before = len(found)
            for node in reversed(self._entered):  # callers first in this list, so few rounds are needed
                if self._has(node, found, holds):
                    found.add(node)
        return found

    def _has(self, node: int, found: set[int], holds: Callable[[Regex], bool]) -> bool:
        if node in self._regular:
            return holds(self._regular[node])
        children = [child in found for child in self._nodes[node].children]
        match self._nodes[node].term:
            case ir.Sequence():
                return all(children)
            case ir.Repeat(min=least):
                return least == 0 or children[0]
            case ir.Permutation() as term:
                *items, rest, separator = children
                due = items[: len(term.required)]
                count = max(term.min, len(due))
                others = sum(items[len(due) :]) >= count - len(due) or rest
                return all(due) and others and (count < 2 or separator)
            case _:
                return any(children)


def _is_regular(term: Grammar) -> bool:
    """Whether a term is read by derivatives; a budget of tokens changes nothing, for none are known here."""
    return isinstance(term, REGULAR) or (isinstance(term, ir.Budget) and term.characters is not None)


def _spelled_out(algebra: Algebra, term: ir.Permutation, parts: list[Regex]) -> Regex:
    """A permutation as a regular expression: exponential in the number of items, so for few of them."""
    *items, rest, separator = parts
    due = frozenset(range(len(term.required)))
    made: dict[tuple[frozenset[int], int], Regex] = {}

    def after(used: frozenset[int], count: int) -> Regex:
        """What may follow ``count`` items; beyond the bounds, they are not counted."""
        key = used, count
        if key not in made:
            ways = [algebra.epsilon] if count >= term.min and used >= due else []
            between = separator if count else algebra.epsilon
            is_counted = count < term.min or term.max is not None or count == 0
            if term.max is None or count < term.max:
                for place in set(range(len(items))) - used:
                    following = after(used | {place}, count + 1 if is_counted else count)
                    ways.append(algebra.concatenation([between, items[place], following]))
                if is_counted:
                    ways.append(algebra.concatenation([between, rest, after(used, count + 1)]))
            loop = algebra.epsilon
            if not is_counted:
                loop = algebra.repetition(algebra.concatenation([separator, rest]), 0, None)
            made[key] = algebra.concatenation([loop, algebra.union(ways)])
        return made[key]

    return after(frozenset(), 0)
