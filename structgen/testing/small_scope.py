"""The exhaustive small scope: all small grammars, all short tokens, and all strings of a language up to a length."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Final, TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.testing.node_semantics import (
    ResolvedNode,
    is_refused_label,
    order_without_cycle,
    postorder_of,
    repeats,
    resolve,
)

__all__ = [
    "BOOLEAN",
    "ITSELF",
    "REGULAR",
    "STAR",
    "Operator",
    "byte_vocabulary",
    "language",
    "recursive",
    "small_terms",
]

Operator: TypeAlias = tuple[int, Callable[..., Grammar]]
"""How many terms an operator takes, and how it makes one of them."""

STAR: Final[Operator] = (1, lambda item: ir.Repeat(item, 0, None))
"""Any number of times."""

REGULAR: Final[tuple[Operator, ...]] = (
    (2, lambda first, second: ir.Sequence((first, second))),
    (2, lambda one, other: ir.Choice((one, other))),
    STAR,
    (1, lambda item: ir.Repeat(item, 1, 2)),
)
"""Sequence, choice, star and a counted repetition: with :data:`ITSELF` among the leaves, context-free too."""

BOOLEAN: Final[tuple[Operator, ...]] = ((2, lambda one, other: ir.Intersection((one, other))), (1, ir.Complement))
"""Intersection and complement, for terms without recursion."""

ITSELF: Final[Grammar] = ir.Reference("itself")
"""The leaf that means the whole term, bound by :func:`recursive`."""


def small_terms(
    max_nodes: int, leaves: Iterable[Grammar], operators: Iterable[Operator] = REGULAR
) -> Iterator[Grammar]:
    """Yield every term of at most ``max_nodes`` nodes, small ones first.

    Complexity: the number of terms grows about fourfold with each node, for two leaves and :data:`REGULAR`.

    >>> from structgen.grammar.nodes import literal
    >>> [sum(1 for _ in small_terms(size, [literal("a"), literal("b")])) for size in (1, 2, 3, 4)]
    [2, 6, 22, 86]
    """
    choices = tuple(operators)
    of_size: list[list[Grammar]] = [[], list(leaves)]
    yield from of_size[1]
    for size in range(2, max_nodes + 1):
        of_size.append(
            [
                make(*parts)
                for arity, make in choices
                for sizes in product(range(1, size), repeat=arity)
                if sum(sizes) == size - 1
                for parts in product(*(of_size[part_size] for part_size in sizes))
            ]
        )
        yield from of_size[size]


def recursive(term: Grammar) -> Grammar:
    """The rule whose expression is ``term``, in which :data:`ITSELF` means the rule."""
    return ir.Rules({"itself": term}, ITSELF)


def byte_vocabulary(letters: bytes, max_length: int) -> list[bytes]:
    """List the tokens of a vocabulary of all words over ``letters``; id 0 has no bytes and is meant for EOS.

    >>> byte_vocabulary(b"ab", 2)
    [b'', b'a', b'b', b'aa', b'ab', b'ba', b'bb']
    """
    return [bytes(word) for length in range(max_length + 1) for word in product(letters, repeat=length)]


def language(grammar: ir.Grammar, max_length: int, alphabet: Iterable[int]) -> set[bytes]:
    """Return the strings of ``grammar`` of at most ``max_length`` bytes, all of them in ``alphabet``.

    Strings with special tokens are left out: they are no byte strings.

    Raises:
        GrammarError: a reference is unbound, or an intersection, complement or JSON string is recursive.

    Complexity: exponential in ``max_length``.

    >>> from structgen.grammar.nodes import literal, repeat
    >>> sorted(language(repeat(literal("a") | "bb", 1, 2), 3, b"ab"))
    [b'a', b'aa', b'abb', b'bb', b'bba']
    """
    letters = sorted(set(alphabet))
    universe = {bytes(word) for n in range(max_length + 1) for word in product(letters, repeat=n)}
    return _valid_strings(resolve(grammar), 0, universe)


def _valid_strings(nodes: tuple[ResolvedNode, ...], root: int, universe: set[bytes]) -> set[bytes]:
    """The strings of node ``root`` in ``universe``, a set that holds every part of each of its strings.

    What does not lie on a cycle comes after all that it depends on, so it is right from the first round;
    regular terms are such, which is why complements may stand among the monotone operators.
    """
    if not universe:
        return set()
    order, is_cyclic = postorder_of(nodes, root)
    constant = {node: _constant(nodes, node, universe) for node in order}
    members: dict[int, set[bytes]] = {node: set() for node in order}
    changed = True
    while changed:
        changed = False
        for node in order:
            fixed = constant[node]
            found = _combined(nodes[node], members, universe) if fixed is None else fixed
            changed |= is_cyclic and found != members[node]
            members[node] = found
    return members[root]


def _constant(nodes: tuple[ResolvedNode, ...], node: int, universe: set[bytes]) -> set[bytes] | None:
    """The strings of a term that are known without those of its children in ``universe``."""
    match nodes[node].term:
        case ir.Literal(data=data):
            return {data} & universe
        case ir.ByteClass(ranges=ranges):
            return {word for word in universe if len(word) == 1 and _within(word[0], ranges)}
        case ir.CharClass(ranges=ranges):
            texts = {word: _decoded(word) for word in universe if len(word) <= 4}
            return {w for w, text in texts.items() if text and len(text) == 1 and _within(ord(text), ranges)}
        case ir.SpecialToken(token=token, or_text=or_text):
            return {str(token).encode()} & universe if or_text else set()
        case ir.TokenSet():
            return set()
        case ir.JsonString():
            order_without_cycle(nodes, node)
            spelled = {word: text for word in universe if (text := _json_string(word)) is not None}
            values = _valid_strings(nodes, nodes[node].children[0], _parts(spelled.values()))
            return {word for word, text in spelled.items() if text in values}
        case ir.Intersection() | ir.Complement():
            order_without_cycle(nodes, node)
    return None


def _combined(node: ResolvedNode, members: Mapping[int, set[bytes]], universe: set[bytes]) -> set[bytes]:
    parts = [members[child] for child in node.children]
    match node.term:
        case ir.Sequence():
            joined = {b""}
            for part in parts:
                joined = _concatenation(joined, part, universe)
            return joined
        case ir.Repeat(min=least, max=most):
            return _repetition(parts[0], least, most, universe)
        case ir.Permutation():
            return _permutations(node.term, parts, universe)
        case ir.Intersection():
            return _texts(universe).intersection(*parts) if not parts else parts[0].intersection(*parts[1:])
        case ir.Complement():
            return _texts(universe) - parts[0]
        case ir.Budget(characters=characters):  # a byte string has no tokens
            return parts[0] if characters is None else {word for word in parts[0] if _is_short(word, characters)}
        case ir.Distinct():
            return {word for word in parts[0] if not repeats(word)}
        case ir.Label(kind=kind):
            return {word for word in parts[0] if not is_refused_label(word, kind)}
        case _:
            return set().union(*parts)


def _is_short(word: bytes, characters: int) -> bool:
    text = _decoded(word)
    return text is not None and len(text) <= characters


def _concatenation(left: set[bytes], right: set[bytes], universe: set[bytes]) -> set[bytes]:
    return {word for a in left for b in right if (word := a + b) in universe}


def _repetition(item: set[bytes], least: int, most: int | None, universe: set[bytes]) -> set[bytes]:
    """The union of the powers ``least`` to ``most``."""
    # Once a power equals the one before, so do all further ones.
    power, union = {b""}, set()
    count = 0
    while most is None or count <= most:
        if count >= least:
            union |= power
        following = _concatenation(power, item, universe)
        if following == power:
            return union | power
        power, count = following, count + 1
    return union


def _permutations(term: ir.Permutation, parts: list[set[bytes]], universe: set[bytes]) -> set[bytes]:
    """All lists of items in all orders, item by item; counts differ up to the larger bound."""
    *items, rest, separator = parts
    due = frozenset(range(len(term.required)))
    bound = max(term.min, 1) if term.max is None else term.max
    found = {b""} if term.min == 0 and not due else set()
    agenda = [(b"", frozenset[int](), 0)]
    seen = set(agenda)
    while agenda:
        word, used, count = agenda.pop()
        if term.max is not None and count == term.max:
            continue
        before = _concatenation({word}, separator if count else {b""}, universe)
        free = [(place, item) for place, item in enumerate(items) if place not in used]
        for place, texts in [*free, (None, rest)]:
            taken = used if place is None else used | {place}
            for longer in _concatenation(before, texts, universe):
                if count + 1 >= term.min and taken >= due:
                    found.add(longer)
                state = longer, taken, min(count + 1, bound)
                if state not in seen:
                    seen.add(state)
                    agenda.append(state)
    return found


def _json_string(word: bytes) -> bytes | None:
    """The text that a JSON string literal decodes to; ``None`` for other words and lone surrogates."""
    if not (word.startswith(b'"') and word.endswith(b'"')):
        return None
    try:
        value = json.loads(word.decode())
        return value.encode() if isinstance(value, str) else None
    except (UnicodeError, json.JSONDecodeError):
        return None


def _parts(texts: Iterable[bytes]) -> set[bytes]:
    return {text[i:j] for text in texts for i in range(len(text) + 1) for j in range(i, len(text) + 1)}


def _texts(universe: set[bytes]) -> set[bytes]:
    return {word for word in universe if _decoded(word) is not None}


def _decoded(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None


def _within(number: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(low <= number <= high for low, high in ranges)
