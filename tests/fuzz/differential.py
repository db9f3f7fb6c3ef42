"""The engine against the reference implementation: random grammars, small vocabularies, random walks.

All bytes of an input are choices: of a term (rules, boolean operators, JSON strings, permutations), of the tokens of a
vocabulary, and of a walk. In each state the mask is that of ``structgen.testing.reference``, the trial of each token
agrees with it, and so do forks, trees, rollback and, in a vocabulary that spells everything, masks within budgets: a
breadth-first search with the reference decides them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from typing import Final

import numpy as np
from targets import BOUNDS, Finding, Target
from text_mutation import mutated_bytes

import structgen as sg
from structgen.engine import Matcher
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.testing import ReferenceMatcher
from structgen.testing.derivatives import Algebra
from structgen.testing.state_walk import finds_valid_string, reference_after

__all__ = ["TARGET", "Choices", "grammar_of", "vocabulary_of"]

_LETTERS: Final = b"ab"
_CHARACTERS: Final = "abé€"
_RULES: Final = ("r0", "r1", "r2")
_MOST_STEPS: Final = 5
_MOST_SEARCHED: Final = 120
"""Texts of one length that the search for an end looks at; beyond that it gives up."""
_SPELLED: Final = frozenset(b'abz"[]\\u0' + "é€".encode())
"""Bytes that the search tries; z stands for all those that no grammar here names."""


_INPUTS: Final = count()
_SHARING: Final = 1_000


@lru_cache(maxsize=1)
def _algebra(_: int) -> Algebra:
    """What the reference knows of regular languages: those of a few letters come again and again."""
    return Algebra()


class Choices:
    """Numbers from the bytes of an input; when they are used up, zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, count: int) -> int:
        """A number from 0 to ``count - 1``."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % count

    def one_of(self, values: Sequence[int]) -> int:
        """One of some numbers."""
        return values[self.below(len(values))]


def _byte_leaf(choices: Choices) -> Grammar:
    match choices.below(5):
        case 0 | 1:
            return ir.Literal(bytes(_LETTERS[choices.below(2)] for _ in range(1 + choices.below(3))))
        case 2:
            return ir.ByteClass([(97, 98)])
        case 3:
            return ir.Literal(bytes([_LETTERS[choices.below(2)]]))
        case _:
            return ir.EPSILON


def _text_leaf(choices: Choices) -> Grammar:
    if choices.below(3):
        return ir.literal("".join(_CHARACTERS[choices.below(4)] for _ in range(1 + choices.below(2))))
    low, high = sorted(ord(_CHARACTERS[choices.below(4)]) for _ in range(2))
    return ir.CharClass([(low, high)])


def _regular(choices: Choices, depth: int, leaf: Callable[[Choices], Grammar]) -> Grammar:
    """A term without rules; complements and intersections are of texts, so bytes that are no text stay outside."""
    if depth == 0:
        return leaf(choices)
    parts = [_regular(choices, depth - 1, leaf) for _ in range(1 + choices.below(3))]
    match choices.below(9):
        case 0 | 1:
            return ir.Sequence(parts)
        case 2 | 3:
            return ir.Choice(parts)
        case 4:
            least = choices.below(3)
            return ir.Repeat(parts[0], least, [None, least, least + 1, least + 3][choices.below(4)])
        case 5:
            return ir.Intersection(parts[:2])
        case 6:
            return ir.Complement(parts[0])
        case 7:
            return _permutation(choices, parts)
        case _:
            return parts[0]


def _permutation(choices: Choices, parts: list[Grammar]) -> Grammar:
    required = choices.below(len(parts) + 1)
    rest = ir.Literal(b"b") if choices.below(2) else ir.EMPTY
    separator = ir.Literal(b"a") if choices.below(2) else ir.EPSILON
    least = choices.below(3)
    most = None if choices.below(2) else max(least, required) + choices.below(2)
    return ir.Permutation(parts[:required], parts[required:], rest, separator, least, most)


def _body(choices: Choices, depth: int, names: Sequence[str]) -> Grammar:
    if depth == 0:
        return ir.Reference(names[choices.below(len(names))]) if choices.below(3) == 0 else _byte_leaf(choices)
    parts = [_body(choices, depth - 1, names) for _ in range(1 + choices.below(3))]
    match choices.below(7):
        case 0 | 1 | 2:
            return ir.Sequence(parts)
        case 3 | 4:
            return ir.Choice(parts)
        case 5:
            least = choices.below(2)
            return ir.Repeat(parts[0], least, [None, least + 2][choices.below(2)])
        case _:
            return _regular(choices, 1, _byte_leaf)


def grammar_of(choices: Choices) -> Grammar:
    """A closed term; its kind is the first choice."""
    match choices.below(6):
        case 0 | 1:
            names = _RULES[: 1 + choices.below(3)]
            bodies = [(name, _body(choices, 1 + choices.below(2), names)) for name in names]
            return ir.Rules(bodies, ir.Reference(names[0]))
        case 2:
            return _regular(choices, 2, _byte_leaf)
        case 3:
            return _regular(choices, 1 + choices.below(2), _text_leaf)
        case 4:
            strings = [ir.JsonString(_regular(choices, 1, _text_leaf)) for _ in range(1 + choices.below(2))]
            return ir.Sequence([ir.literal("["), *strings, ir.literal("]")]) if choices.below(2) else ir.Choice(strings)
        case _:
            special = ir.SpecialToken(1)
            inner = _regular(choices, 1, _byte_leaf)
            return ir.Sequence(
                [ir.Repeat(special, 0, 1), ir.Shared(inner), ir.Choice([special, ir.Literal(b"a")]), inner]
            )


_JOINTS: Final = (
    *(b"aa", b"ab", b"ba", b"bb", b"aab", b"abab", b"bbb"),
    *(b"\xc3\xa9", b"\xc3", b"\xa9", b"\xe2\x82\xac", b"a\xe2\x82", b"\xacb"),
    *rb"""'a a' [' '] \u \u00 e9 \ '' 00e9 20ac""".replace(b"'", b'"').split(),
)


def vocabulary_of(choices: Choices) -> tuple[sg.Vocabulary, bool]:
    """A vocabulary of up to some twenty tokens, and whether it has all bytes; EOS is 0, and 1 is special."""
    is_complete = choices.below(8) == 7
    letters = (
        range(256) if is_complete else sorted({*_LETTERS, *(b'"[]\\u0' if choices.below(2) else b""), *"é€".encode()})
    )
    tokens = [b"", b"", *(bytes([letter]) for letter in letters)]
    tokens += [_JOINTS[choices.below(len(_JOINTS))] for _ in range(choices.below(9))]
    return sg.Vocabulary(tokens, eos=[0], special={1: "<x>"}), is_complete


def _mask(matcher: Matcher, size: int, budget: int | None = None) -> set[int]:
    words = np.full((1, (size + 31) // 32), -1, dtype=np.int32)
    if budget is None:
        matcher.fill_mask(words)
    else:
        matcher.fill_mask(words, budget=budget)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def _read(reference: ReferenceMatcher, tokens: Sequence[bytes], token: int) -> bool:
    return reference.advance_special(1) if token == 1 else reference.accept_bytes(tokens[token]) == len(tokens[token])


def _spells_on(
    reference: ReferenceMatcher, words: sg.Vocabulary, budget: int, spelled: frozenset[int] = _SPELLED
) -> bool:
    """Whether at most ``budget`` tokens complete what the reference has read; breadth first."""
    tokens = [token if len(token) > 1 or set(token) <= spelled else b"" for token in words.tokens]
    level = {b"": reference}
    for _ in range(budget + 1):
        if any(each.is_accepting for each in level.values()):
            return True
        if len(level) > _MOST_SEARCHED:
            raise OverflowError
        below: dict[bytes, ReferenceMatcher] = {}
        for text, each in level.items():
            for token in each.mask(tokens):
                longer = text + (b"\xff" if token == 1 else words.tokens[token])
                if longer not in below:
                    below[longer] = each.fork()
                    _read(below[longer], words.tokens, token)
        level = below
    return False


def _expect(found: object, wanted: object, what: str, path: Sequence[int]) -> None:
    if found != wanted:
        raise Finding(f"{what} after {list(path)}: {found}, not {wanted}")


def _differential(data: bytes) -> str:
    choices = Choices(data)
    grammar = grammar_of(choices)
    words, is_complete = vocabulary_of(choices)
    reference = ReferenceMatcher(grammar, words.special, algebra=_algebra(next(_INPUTS) // _SHARING))
    try:
        constraint = sg.compile(grammar, words, limits=BOUNDS)
    except sg.errors.UnsatisfiableGrammar:
        _expect(reference.is_live, False, "whether a refused grammar has strings", ())
        return "empty"
    except sg.errors.VocabularyError:
        return "not spelled"
    return _walk(constraint, words, reference, choices, is_complete=is_complete)


def _walk(
    constraint: sg.Constraint, words: sg.Vocabulary, reference: ReferenceMatcher, choices: Choices, *, is_complete: bool
) -> str:
    matcher = constraint.matcher()
    path: list[int] = []
    seen: list[set[int]] = []
    for _ in range(_MOST_STEPS):
        mask = _mask(matcher, words.size)
        wanted = reference.mask(words.tokens, eos=words.eos)
        _expect(mask <= wanted, True, f"mask {sorted(mask)} is part of {sorted(wanted)}", path)
        for token in wanted - mask:  # right only where bytes that no token has are needed later
            after = None if is_complete else reference_after(reference, words, token)
            _expect(
                after is None or finds_valid_string(after, words, fuel=200),
                False,
                f"the mask lacks {token}, which",
                path,
            )
        _expect(matcher.is_accepting, reference.is_accepting, "is_accepting", path)
        _expect(mask != set(), True, "some token is allowed", path)
        tried = (
            range(words.size)
            if words.size < 40
            else sorted({*list(mask)[:20], *(choices.below(256) for _ in range(9))})
        )
        _expect(
            {token for token in tried if matcher.fork().accept(token)}, mask & set(tried), "the accepted tokens", path
        )
        _expect(
            [matcher.validate([token]) for token in tried], [int(token in mask) for token in tried], "validate", path
        )
        _tree(matcher, mask, words, choices, path)
        if is_complete and choices.below(2) == 0:
            _budgets(matcher, mask, words, reference, choices, path)
        seen.append(mask)
        following = sorted(mask - {0})
        if not following:
            break
        path.append(choices.one_of(following))
        _expect(matcher.accept(path[-1]), True, f"accept({path[-1]})", path[:-1])
        _expect(_read(reference, words.tokens, path[-1]), True, f"the reference reads {path[-1]}", path[:-1])
    _back(constraint, matcher, words, path, seen, choices)
    return "compiled"


def _tree(matcher: Matcher, mask: set[int], words: sg.Vocabulary, choices: Choices, path: list[int]) -> None:
    """A tree of tokens, against forks that take them."""
    allowed = sorted(mask)
    tokens = [choices.one_of(allowed) if choices.below(3) else choices.below(words.size) for _ in range(4)]
    parents = [choices.below(index + 1) - 1 for index in range(len(tokens))]
    rows = np.zeros((len(tokens) + 1, (words.size + 31) // 32), dtype=np.int32)
    found = matcher.fill_mask_tree(tokens, parents, rows)
    _expect(matcher.validate_tree(tokens, parents), found, "validate_tree and fill_mask_tree", path)
    forks: list[Matcher | None] = []
    for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        above = matcher if parent < 0 else forks[parent]
        fork = above.fork() if above is not None else None
        forks.append(fork if fork is not None and fork.accept(token) else None)
        _expect(found[index], forks[-1] is not None, f"tree {tokens} {parents} at {index}", path)
        last = forks[-1]
        row = set(np.flatnonzero(np.unpackbits(rows[index + 1].view(np.uint8), bitorder="little")).tolist())
        _expect(
            row,
            _mask(last, words.size) if last is not None else set(),
            f"row of tree {tokens} {parents} at {index}",
            path,
        )


def _budgets(
    matcher: Matcher,
    mask: set[int],
    words: sg.Vocabulary,
    reference: ReferenceMatcher,
    choices: Choices,
    path: list[int],
) -> None:
    """A mask within a budget holds the tokens after which the reference finds an end in time."""
    budget = choices.below(4)
    within = _mask(matcher, words.size, budget)
    for token in sorted(mask)[:12]:
        if token == 0:
            _expect(0 in within, True, f"EOS within {budget}", path)
            continue
        after = reference.fork()
        _read(after, words.tokens, token)
        try:
            reaches = budget > 0 and _spells_on(after, words, budget - 1)
            if not reaches and budget > 0 and token in within:  # other bytes spell it, as those of an escape
                reaches = _spells_on(after, words, budget - 1, frozenset(range(256)))
        except OverflowError:
            continue
        _expect(token in within, reaches, f"token {token} within {budget}", path)
    _expect(within <= mask, True, f"the mask within {budget} is part of the mask", path)


def _back(
    constraint: sg.Constraint,
    matcher: Matcher,
    words: sg.Vocabulary,
    path: list[int],
    seen: list[set[int]],
    choices: Choices,
) -> None:
    """Rollback leads to the masks that were there, replay to the same, and EOS ends."""
    steps = list(path[: len(seen)])
    replayed = constraint.matcher()
    for token in path:
        replayed.accept(token)
    _expect(_mask(replayed, words.size), _mask(matcher, words.size), "the mask of a replayed matcher", path)
    while len(steps) > 0:
        undone = min(len(steps), 1 + choices.below(3))
        matcher.rollback(undone)
        del steps[len(steps) - undone :]
        _expect(_mask(matcher, words.size), seen[len(steps)], f"the mask after rollback({undone})", steps)
    if matcher.is_accepting:
        fork = matcher.fork()
        _expect((fork.accept(0), fork.is_terminated, _mask(fork, words.size)), (True, True, set()), "EOS", [])
        fork.rollback(1)
        _expect(_mask(fork, words.size), seen[0], "the mask after EOS is undone", [])


def _mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Other choices: some new ones, some of another input; now and then all new."""
    if rng.random() < 0.3 or not data:
        return rng.randbytes(rng.choice((20, 40, 80, 160)))
    if rng.random() < 0.2:
        other = rng.choice(others)
        cut = rng.randrange(len(data) + 1)
        return data[:cut] + other[cut:]
    return mutated_bytes(data, rng)


TARGET: Final = Target("differential", _differential, _mutated)
