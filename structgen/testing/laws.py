"""The laws that every matcher obeys, as functions to run on your own grammars and vocabularies.

Each law takes a constraint and a source of randomness, walks to random states and raises
:class:`LawViolation` with a shrunk path where it does not hold.  :func:`check_laws` runs them all.

>>> import random
>>> from structgen.testing import check_laws
>>> check_laws(constraint, random.Random(0))  # doctest: +SKIP
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from structgen.testing.distance_laws import budget_mask_is_exact, min_tokens_is_exact, no_dead_end
from structgen.testing.observations import (
    accept_all,
    advance_randomly,
    finds_member,
    is_forced,
    lacks_bytes,
    other_spelling,
    reference_after,
    snapshot,
    text_of,
    whether_in,
)
from structgen.testing.protocols import AnyConstraint, Bitmask
from structgen.testing.walks import (
    USUAL,
    Effort,
    LawViolation,
    Reached,
    allowed_tokens,
    empty_bitmask,
    everywhere,
    ids_of,
    shown,
)

__all__ = [
    "LAWS",
    "Effort",
    "Law",
    "LawViolation",
    "batch_equals_map",
    "budget_mask_is_exact",
    "check_laws",
    "eos_iff_accepting",
    "forced_tokens_are_unique",
    "forks_are_independent",
    "mask_equals_reference",
    "mask_iff_accept",
    "min_tokens_is_exact",
    "no_dead_end",
    "rollback_undoes_accept",
    "spelling_invariance",
    "validate_agrees",
]


class Law(Protocol):
    """A law, by its name."""

    __name__: str

    def __call__(self, constraint: AnyConstraint, rng: random.Random, effort: Effort = ...) -> None: ...


def check_laws(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """Check every law.

    Raises:
        LawViolation: the first one that does not hold.
    """
    for law in LAWS:
        law(constraint, rng, effort)


def mask_iff_accept(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """A token is in the mask iff it is accepted; a refused one changes nothing; a mask is one row only."""

    def check(at: Reached) -> str | None:
        size = at.vocabulary.size
        garbage = np.array([[at.rng.getrandbits(32) for _ in empty_bitmask(size)[0]] for _ in range(3)])
        bitmask: Bitmask = garbage.astype(np.uint32).view(np.int32)
        around = bitmask[[0, 2]].copy()
        at.matcher.fill_mask(bitmask, 1)
        if not np.array_equal(bitmask[[0, 2]], around):
            return "fill_mask wrote outside its row"
        mask = ids_of(bitmask[1])
        if any(token >= size for token in mask):
            return f"bit {max(mask)} is set beyond the {size} tokens of the vocabulary"
        for token in at.sampled_tokens():
            fork = at.matcher.fork()
            if fork.accept(token) != (token in mask):
                verb = "is in the mask, yet refused" if token in mask else "is accepted, yet not in the mask"
                return f"token {shown(at.vocabulary, token)} {verb}"
            if token not in mask and allowed_tokens(fork, size) != mask:
                return f"the refused token {shown(at.vocabulary, token)} changed the mask"
        return None

    everywhere("mask_iff_accept", check, constraint, rng, effort)


def mask_equals_reference(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """The mask holds the tokens that ``ReferenceMatcher`` allows, and it accepts where that does.

    The reference knows bytes and not which of them the vocabulary can spell; where some byte is no token, a token
    may be withheld if no member is found by way of it.
    """

    def check(at: Reached) -> str | None:
        reference = at.reference()
        if reference.is_accepting != at.matcher.is_accepting:
            return f"is_accepting is {at.matcher.is_accepting}; the reference says {reference.is_accepting}"
        got = allowed_tokens(at.matcher, at.vocabulary.size)
        for token in at.sampled_tokens():
            after = reference_after(reference, at.vocabulary, token)
            if token in got and after is None:
                return f"{shown(at.vocabulary, token)} is in the mask; the reference refuses it"
            if token in got or after is None:
                continue
            if not lacks_bytes(at.vocabulary) or finds_member(after, at.vocabulary, fuel=at.effort.tokens):
                return f"{shown(at.vocabulary, token)} is not in the mask; the reference allows it"
        return None

    everywhere("mask_equals_reference", check, constraint, rng, effort)


def rollback_undoes_accept(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """Rolling back leads through the states that were passed, in reverse, EOS and bytes included."""

    def check(at: Reached) -> str | None:
        seen = [snapshot(at.matcher, at.vocabulary)]
        for _ in range(at.rng.randint(1, 6)):
            allowed = sorted(allowed_tokens(at.matcher, at.vocabulary.size))
            if not allowed:
                break
            token = at.rng.choice(allowed)
            text = text_of(at.vocabulary, token)
            if text and at.rng.random() < 0.2:
                at.matcher.accept_bytes(text)
            elif not at.matcher.accept(token):
                return f"token {shown(at.vocabulary, token)} is in the mask, yet refused"
            seen.append(snapshot(at.matcher, at.vocabulary))
        while len(seen) > 1:
            count = at.rng.randint(1, len(seen) - 1)
            del seen[len(seen) - count :]
            at.matcher.rollback(count)
            if snapshot(at.matcher, at.vocabulary) != seen[-1]:
                return f"rollback({count}) does not lead to the state that was there {len(seen)} steps in"
        return None

    everywhere("rollback_undoes_accept", check, constraint, rng, effort)


def forks_are_independent(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """What happens to a fork does not touch the matcher that it came from, nor the other way round."""

    def check(at: Reached) -> str | None:
        before = snapshot(at.matcher, at.vocabulary)
        fork = at.matcher.fork()
        if snapshot(fork, at.vocabulary) != before:
            return "a fresh fork differs from its matcher"
        advance_randomly(fork, at)
        if snapshot(at.matcher, at.vocabulary) != before:
            return "advancing a fork changed the matcher"
        after = snapshot(fork, at.vocabulary)
        advance_randomly(at.matcher, at)
        if snapshot(fork, at.vocabulary) != after:
            return "advancing the matcher changed its fork"
        at.matcher.reset()
        if snapshot(fork, at.vocabulary) != after:
            return "resetting the matcher changed its fork"
        if snapshot(at.matcher, at.vocabulary) != snapshot(at.constraint.matcher(), at.vocabulary):
            return "a reset matcher differs from a new one"
        return None

    everywhere("forks_are_independent", check, constraint, rng, effort)


def forced_tokens_are_unique(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """Forced bytes are all that every continuation shares, and forced tokens spell a start of them.

    The reference tells what is shared. Where some byte is no token, more may be, for some continuations cannot be
    spelled; then the tokens of the mask must agree with it.
    """

    def check(at: Reached) -> str | None:
        forced = at.matcher.forced_bytes()
        for token in sorted(allowed_tokens(at.matcher, at.vocabulary.size)) if forced else ():
            text = text_of(at.vocabulary, token)
            if not text or text[: len(forced)] != forced[: len(text)]:
                return f"forced_bytes is {forced!r}, yet {shown(at.vocabulary, token)} is allowed"
        problem = _forced_by_reference(at, forced)
        if problem is not None:
            return problem
        tokens = at.matcher.forced_tokens()
        if not forced.startswith(at.vocabulary.decode(tokens)):
            return f"forced tokens {tokens} spell {at.vocabulary.decode(tokens)!r}; forced is {forced!r}"
        accepted = at.matcher.validate(tokens)
        if accepted != len(tokens):
            return f"of the forced tokens {tokens} only {accepted} are accepted"
        return None

    everywhere("forced_tokens_are_unique", check, constraint, rng, effort)


def _forced_by_reference(at: Reached, forced: bytes) -> str | None:
    reference = at.reference()
    may_be_more = lacks_bytes(at.vocabulary)
    for count, byte in enumerate(forced):
        if not (may_be_more or is_forced(reference, at.vocabulary)):
            return f"forced_bytes is {forced!r}, but only {forced[:count]!r} is shared by all continuations"
        if not reference.advance(byte):
            return f"forced_bytes is {forced!r}, which the reference refuses at byte {count}"
    if is_forced(reference, at.vocabulary):
        return f"forced_bytes is {forced!r}, but byte {reference.allowed_bytes()} is forced after it"
    return None


def spelling_invariance(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """The same bytes by other tokens, or fed as bytes, lead to the same future."""
    spellable = {
        data: token for token, data in enumerate(constraint.vocabulary.tokens) if text_of(constraint.vocabulary, token)
    }

    def check(at: Reached) -> str | None:
        tokens: list[int] = []
        for _ in range(at.rng.randint(1, 3)):
            texts = [t for t in sorted(allowed_tokens(at.matcher, at.vocabulary.size)) if text_of(at.vocabulary, t)]
            if texts:
                tokens.append(at.rng.choice(texts))
                at.matcher.accept(tokens[-1])
        data = b"".join(at.vocabulary.tokens[token] for token in tokens)
        wanted = snapshot(at.matcher, at.vocabulary)
        fed = at.constraint.matcher()
        accept_all(fed, at.path)
        if fed.accept_bytes(data) != len(data) or snapshot(fed, at.vocabulary) != wanted:
            return f"the bytes {data!r} and the tokens {tokens} that spell them lead to different states"
        other = other_spelling(data, spellable, at.rng)
        if other is None:
            return None
        spelled = at.constraint.matcher()
        accept_all(spelled, at.path)
        if not accept_all(spelled, other) or snapshot(spelled, at.vocabulary) != wanted:
            return f"the tokens {tokens} and {other} both spell {data!r} and lead to different states"
        return None

    everywhere("spelling_invariance", check, constraint, rng, effort)


def eos_iff_accepting(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """EOS ids are allowed iff the matcher accepts; taking one ends the sequence, and nothing else does."""

    def check(at: Reached) -> str | None:
        mask = allowed_tokens(at.matcher, at.vocabulary.size)
        if at.matcher.is_terminated:
            return "terminated without EOS"
        for token in at.vocabulary.eos:
            if (token in mask) != at.matcher.is_accepting:
                return f"EOS {token} is {whether_in(mask, token)}, is_accepting is {at.matcher.is_accepting}"
            fork = at.matcher.fork()
            if fork.accept(token) != at.matcher.is_accepting or fork.is_terminated != at.matcher.is_accepting:
                return f"accepting EOS {token} gives is_terminated={fork.is_terminated}"
            if fork.is_terminated and any(fork.accept(other) for other in at.sampled_tokens()):
                return f"a token was accepted after EOS {token}"
        return None

    everywhere("eos_iff_accepting", check, constraint, rng, effort)


def validate_agrees(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """``validate`` counts what ``accept`` would take one after the other, and changes nothing."""

    def check(at: Reached) -> str | None:
        fork = at.matcher.fork()
        tokens = advance_randomly(fork, at)
        tokens += [at.rng.randrange(at.vocabulary.size) for _ in range(at.rng.randint(0, 3))]
        before = snapshot(at.matcher, at.vocabulary)
        counted = at.matcher.validate(tokens)
        if snapshot(at.matcher, at.vocabulary) != before:
            return f"validate({tokens}) changed the state"
        taken = 0
        while taken < len(tokens) and at.matcher.accept(tokens[taken]):
            taken += 1
        return None if counted == taken else f"validate({tokens}) is {counted}; accept takes {taken}"

    everywhere("validate_agrees", check, constraint, rng, effort)


def batch_equals_map(
    constraint: AnyConstraint,
    rng: random.Random,
    effort: Effort = USUAL,
    *,
    fill_masks: Callable[..., None] | None = None,
) -> None:
    """``fill_masks``, by default that of the engine, writes the rows that ``fill_mask`` writes one by one."""
    fill_all = fill_masks or _engine_fill_masks()

    def check(at: Reached) -> str | None:
        matchers = [at.matcher.fork() for _ in range(at.rng.randint(1, 9))]
        for matcher in matchers:
            advance_randomly(matcher, at)
        together, apart = (~empty_bitmask(at.vocabulary.size, rows=len(matchers)) for _ in range(2))
        fill_all(matchers, together)
        for row, matcher in enumerate(matchers):
            matcher.fill_mask(apart, row)
        rows = np.flatnonzero((together != apart).any(axis=1))
        return f"row {rows[0]} of {len(matchers)} differs from fill_mask" if len(rows) else None

    everywhere("batch_equals_map", check, constraint, rng, effort)


def _engine_fill_masks() -> Callable[..., None]:
    from structgen.engine import fill_masks  # here, so that other implementations need not build the engine

    return fill_masks


LAWS: Final[tuple[Law, ...]] = (
    mask_iff_accept,
    mask_equals_reference,
    eos_iff_accepting,
    validate_agrees,
    rollback_undoes_accept,
    forks_are_independent,
    spelling_invariance,
    forced_tokens_are_unique,
    no_dead_end,
    min_tokens_is_exact,
    budget_mask_is_exact,
    batch_equals_map,
)
"""All laws, the plainest first: what breaks one of the first often breaks later ones too."""
