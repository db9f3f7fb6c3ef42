"""The laws hold for a plain matcher, and each law detects its faults.

The plain matcher implements the public contract with the reference implementation and brute force; each fault below
breaks one promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from structgen.grammar.nodes import Grammar, Reference, Rules, SpecialToken, choice, literal, repeat, sequence
from structgen.testing import (
    LAWS,
    Effort,
    LawViolation,
    ReferenceMatcher,
    byte_vocabulary,
    check_laws,
    matcher_laws as all_laws,
)
from structgen.testing.matcher_laws import MatcherLaw, batch_equals_map
from structgen.testing.state_walk import AnyMatcher, Bitmask

S = Reference("s")
GRAMMARS = [
    literal("abab"),
    sequence(repeat("a", 1, 3), choice("b", "")),
    Rules({"s": choice(sequence("a", S, "b"), "")}, S),
    sequence("ab", choice(SpecialToken("<x>"), "a"), repeat("ba")),
    sequence(repeat(choice("a", "b"), 2, 2), "ab", choice("a", "bb")),
]
SMALL = Effort(walks=3, length=5)


class Vocabulary:
    """All words of up to three bytes over a and b; 0 and 16 are EOS, 15 is special, 17 has no bytes."""

    def __init__(self) -> None:
        self.tokens = [*byte_vocabulary(b"ab", 3), b"", b"", b""]
        self.eos = (0, 16)
        self.special = {15: "<x>"}
        self.size = len(self.tokens)

    def decode(self, ids: Sequence[int], /) -> bytes:
        return b"".join(self.tokens[i] for i in ids)


class Matcher:
    """The contract, slowly: a history of reference states, and distances by breadth-first search."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.history = [ReferenceMatcher(grammar, vocabulary.special)]
        self.ended = [False]

    @property
    def is_accepting(self) -> bool:
        return self.history[-1].is_accepting

    @property
    def is_terminated(self) -> bool:
        return self.ended[-1]

    def _push(self, state: ReferenceMatcher, *, ended: bool = False) -> None:
        self.history.append(state)
        self.ended.append(ended)

    def accept(self, token_id: int, /) -> bool:
        if self.is_terminated:
            return False
        state = self.history[-1].fork()
        if token_id in self.vocabulary.eos:
            if state.is_accepting:
                self._push(state, ended=True)
            return state.is_accepting
        if token_id in self.vocabulary.special:
            accepted = state.advance_special(token_id)
        else:
            data = self.vocabulary.tokens[token_id]
            accepted = 0 < len(data) == state.accept_bytes(data)
        if accepted:
            self._push(state)
        return accepted

    def accept_bytes(self, data: bytes, /) -> int:
        state = self.history[-1].fork()
        count = state.accept_bytes(data)
        self._push(state)
        return count

    def validate(self, token_ids: Sequence[int], /) -> int:
        fork = self.fork()
        return next((count for count, token in enumerate(token_ids) if not fork.accept(token)), len(token_ids))

    def rollback(self, n: int, /) -> None:
        del self.history[len(self.history) - n :], self.ended[len(self.ended) - n :]

    def fork(self) -> Matcher:
        reference = type(self).__new__(type(self))
        reference.__dict__.update(self.__dict__, history=list(self.history), ended=list(self.ended))
        return reference

    def reset(self) -> None:
        del self.history[1:], self.ended[1:]

    def allowed(self) -> set[int]:
        if self.is_terminated:
            return set()
        return self.history[-1].mask(self.vocabulary.tokens, eos=self.vocabulary.eos)

    def fill_mask(self, bitmask: Bitmask, row: int = 0) -> None:
        write(bitmask, row, self.allowed())

    def fill_mask_within(self, bitmask: Bitmask, row: int, budget: int) -> None:
        write(bitmask, row, self.allowed_within(budget))

    def allowed_within(self, budget: int) -> set[int]:
        return {t for t in self.allowed() if t in self.vocabulary.eos or self.after(t).min_tokens() < budget}

    def needs_budget_mask(self, budget: int) -> bool:
        return self.allowed_within(budget) != self.allowed()

    def after(self, token: int) -> Matcher:
        fork = self.fork()
        assert fork.accept(token)
        return fork

    def min_tokens(self) -> int:
        states, count = [self], 0
        while not any(state.is_accepting for state in states):
            states = [state.after(token) for state in states for token in sorted(state.allowed())]
            count += 1
        return count

    def forced_bytes(self) -> bytes:
        state, forced = self.history[-1].fork(), b""
        while not state.is_accepting and not state.fork().advance_special("<x>"):
            allowed = state.allowed_bytes()
            if len(allowed) != 1:
                break
            forced += bytes(allowed)
            state.advance(*allowed)
        return forced

    def forced_tokens(self) -> list[int]:
        forced = self.forced_bytes()
        return [self.vocabulary.tokens.index(forced[:3])] if forced else []


class Constraint:
    def __init__(self, grammar: Grammar, kind: type[Matcher] = Matcher) -> None:
        self.grammar = grammar
        self.kind = kind
        self.vocabulary = Vocabulary()

    def matcher(self) -> AnyMatcher:
        return self.kind(self.grammar, self.vocabulary)

    def min_tokens(self) -> int:
        return self.kind(self.grammar, self.vocabulary).min_tokens()


def write(bitmask: Bitmask, row: int, ids: set[int]) -> None:
    bitmask[row] = 0
    for token in ids:
        bitmask[row].view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def fill_each(matchers: Sequence[Any], bitmask: Bitmask) -> None:
    for row, matcher in enumerate(matchers):
        matcher.fill_mask(bitmask, row)


def run(
    law: MatcherLaw, constraint: Constraint, fill_masks: Callable[..., None] = fill_each, effort: Effort = SMALL
) -> None:
    rng = random.Random(5)
    if law is batch_equals_map:
        batch_equals_map(constraint, rng, effort, fill_masks=fill_masks)
    else:
        law(constraint, rng, effort)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_law_holds_for_the_plain_matcher(law: MatcherLaw, grammar: Grammar) -> None:
    """The plain matcher keeps the whole contract."""
    run(law, Constraint(grammar))


class AllowsTooMuch(Matcher):
    def allowed(self) -> set[int]:
        return super().allowed() | {3}


class AllowsTooLittle(Matcher):
    def allowed(self) -> set[int]:
        return super().allowed() - {2}


class BothAllowTooLittle(AllowsTooLittle):
    def accept(self, token_id: int, /) -> bool:
        return token_id != 2 and super().accept(token_id)


class WritesBeyond(Matcher):
    def fill_mask(self, bitmask: Bitmask, row: int = 0) -> None:
        super().fill_mask(bitmask, row)
        bitmask[row, -1] |= 1 << 30


class WritesNextRow(Matcher):
    def fill_mask(self, bitmask: Bitmask, row: int = 0) -> None:
        super().fill_mask(bitmask, row)
        bitmask[min(row + 1, len(bitmask) - 1), 0] ^= row + 1 < len(bitmask)


class RefusalMovesOn(Matcher):
    def accept(self, token_id: int, /) -> bool:
        accepted = super().accept(token_id)
        if not accepted and not self.is_terminated:
            state = self.history[-1].fork()
            state.accept_bytes(self.vocabulary.tokens[token_id])
            self.history[-1] = state
        return accepted


class RollsBackTooLittle(Matcher):
    def rollback(self, n: int, /) -> None:
        super().rollback(n - 1 if n > 1 else n)


class ForksShare(Matcher):
    def fork(self) -> Matcher:
        reference = super().fork()
        reference.history = self.history
        reference.ended = self.ended
        return reference


class ResetsNothing(Matcher):
    def reset(self) -> None:
        return


class ForcesTooMuch(Matcher):
    def forced_bytes(self) -> bytes:
        return super().forced_bytes() + b"a"


class ForcesTooLittle(Matcher):
    def forced_bytes(self) -> bytes:
        return super().forced_bytes()[:1]


class ForcesOtherTokens(Matcher):
    def forced_tokens(self) -> list[int]:
        return [2 for _ in super().forced_tokens()]


class SpellingMatters(Matcher):
    def accept(self, token_id: int, /) -> bool:
        return not (token_id == 1 and len(self.history) > 1) and super().accept(token_id)


class EosAlways(Matcher):
    def allowed(self) -> set[int]:
        return super().allowed() | (set() if self.is_terminated else set(self.vocabulary.eos))


class GoesOnAfterEos(Matcher):
    @property
    def is_terminated(self) -> bool:
        return False


class ValidatesOneLess(Matcher):
    def validate(self, token_ids: Sequence[int], /) -> int:
        return max(super().validate(token_ids) - 1, 0)


class ValidateMoves(Matcher):
    def validate(self, token_ids: Sequence[int], /) -> int:
        return next((n for n, token in enumerate(token_ids) if not self.accept(token)), len(token_ids))


class CountsBytes(Matcher):
    def min_tokens(self) -> int:
        return 2 * super().min_tokens()


class CountsOneMore(Matcher):
    def min_tokens(self) -> int:
        return super().min_tokens() + 1


class BudgetIgnored(Matcher):
    def allowed_within(self, budget: int) -> set[int]:
        return self.allowed()


class BudgetTooTight(Matcher):
    def allowed_within(self, budget: int) -> set[int]:
        return super().allowed_within(budget - 1)


class BudgetMaskNeverNeeded(Matcher):
    def needs_budget_mask(self, budget: int) -> bool:
        return False


FAULTS = [
    ("mask_iff_accept", AllowsTooMuch),
    ("mask_iff_accept", AllowsTooLittle),
    ("mask_iff_accept", WritesBeyond),
    ("mask_iff_accept", WritesNextRow),
    ("mask_iff_accept", RefusalMovesOn),
    ("mask_equals_reference", BothAllowTooLittle),
    ("eos_iff_accepting", EosAlways),
    ("eos_iff_accepting", GoesOnAfterEos),
    ("validate_agrees", ValidatesOneLess),
    ("validate_agrees", ValidateMoves),
    ("rollback_undoes_accept", RollsBackTooLittle),
    ("forks_are_independent", ForksShare),
    ("forks_are_independent", ResetsNothing),
    ("spelling_invariance", SpellingMatters),
    ("forced_tokens_are_unique", ForcesTooMuch),
    ("forced_tokens_are_unique", ForcesTooLittle),
    ("forced_tokens_are_unique", ForcesOtherTokens),
    ("no_dead_end", BudgetTooTight),
    ("min_tokens_is_exact", CountsBytes),
    ("min_tokens_is_exact", CountsOneMore),
    ("budget_mask_is_exact", BudgetIgnored),
    ("budget_mask_is_exact", BudgetTooTight),
    ("budget_mask_is_exact", BudgetMaskNeverNeeded),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_law_notices_the_fault_that_it_is_there_for(name: str, fault: type[Matcher]) -> None:
    """At least one of the grammars shows it, and the message names the law."""
    found: list[LawViolation] = []
    for grammar in GRAMMARS:
        try:
            run(getattr(all_laws, name), Constraint(grammar, fault), effort=Effort(walks=8, length=5))
        except LawViolation as violation:
            found.append(violation)
    assert found
    assert all(violation.law == name and name in str(violation) for violation in found)


def test_batch_equals_map_notices_a_row_out_of_place() -> None:
    """Rows in another order are a violation."""

    def backwards(matchers: Sequence[Any], bitmask: Bitmask) -> None:
        fill_each(matchers[::-1], bitmask)

    with pytest.raises(LawViolation, match="batch_equals_map"):
        run(batch_equals_map, Constraint(GRAMMARS[1]), backwards)


def test_a_violation_is_reported_after_the_shortest_path() -> None:
    """The fault shows after any b, so a path of one token is left and no longer one."""

    class RefusesAfterB(Matcher):
        def accept(self, token_id: int, /) -> bool:
            seen = any(state.fork().is_accepting for state in self.history)
            return not (seen and token_id == 1) and super().accept(token_id)

    grammar = sequence(repeat("a"), "b", repeat(choice("a", "b")))
    with pytest.raises(LawViolation) as caught:
        run(all_laws.mask_iff_accept, Constraint(grammar, RefusesAfterB), effort=Effort(walks=5, length=6))
    assert len(caught.value.path) == 1
    assert "1 (b'a') is in the mask, yet refused; after " in str(caught.value)


def test_check_laws_runs_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each law of the module is in ``LAWS``, and ``check_laws`` calls each once."""
    called: list[str] = []
    named = [name for name in all_laws.__all__ if name.islower() and name != "check_laws"]
    monkeypatch.setattr(all_laws, "LAWS", tuple(lambda *_, name=name: called.append(name) for name in named))
    check_laws(Constraint(GRAMMARS[0]), random.Random(0))
    assert called == named
    assert {law.__name__ for law in LAWS} == set(named)
