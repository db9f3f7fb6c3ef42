"""The laws that every matcher obeys, as functions to run on your own grammars and vocabularies."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from structgen.engine.mask import empty_masks
from structgen.testing.state_walk import (
    DEFAULT_EFFORT,
    AnyConstraint,
    Bitmask,
    Check,
    Effort,
    LawViolation,
    ReachedState,
    accept_all,
    advance_randomly,
    allowed_tokens,
    check_states,
    describe_token,
    distance,
    distance_after,
    finds_valid_string,
    ids_of,
    is_forced,
    lacks_bytes,
    membership_word,
    other_spelling,
    reference_after,
    snapshot,
    text_of,
    tried_tokens,
)

__all__ = [
    "LAWS",
    "Effort",
    "LawViolation",
    "MatcherLaw",
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


class MatcherLaw(Protocol):
    """A law, by its name."""

    __name__: str

    def __call__(self, constraint: AnyConstraint, rng: random.Random, effort: Effort = ...) -> None:
        """Check the law; raise ``LawViolation`` where it does not hold."""


def _in_every_state(check: Check) -> MatcherLaw:
    """Make a law of what must hold in every state: ``check`` says what is wrong in one, or None."""

    def law(constraint: AnyConstraint, rng: random.Random, effort: Effort = DEFAULT_EFFORT) -> None:
        check_states(check.__name__, check, constraint, rng, effort)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(law, name, getattr(check, name))
    return law


@_in_every_state
def no_dead_end(at: ReachedState) -> str | None:
    """Masks are never empty before the end, and from every state the shortest way to it can be taken."""
    if not allowed_tokens(at.matcher, at.vocabulary.size) and not at.matcher.is_accepting:
        return "the mask is empty before the end"
    left = at.matcher.min_tokens()
    if left is None:
        return "no sequence of tokens leads to the end"
    while not at.matcher.is_accepting:
        bitmask = empty_masks(at.vocabulary.size)
        at.matcher.fill_mask_within(bitmask, 0, left)
        choices = sorted(ids_of(bitmask[0]))
        if not choices:
            return f"no token is allowed within a budget of {left}, the minimum"
        token = at.rng.choice(choices)
        if not at.matcher.accept(token):
            return f"token {describe_token(at.vocabulary, token)} of the mask within {left} is refused"
        left -= 1
    return None if left >= 0 else f"the end was reached {-left} tokens after the minimum"


def min_tokens_is_exact(constraint: AnyConstraint, rng: random.Random, effort: Effort = DEFAULT_EFFORT) -> None:
    """``min_tokens`` is 0 iff accepting, else one more than the least after any token.

    In a vocabulary that is tried in full, these equations have one solution: the true distance.
    """
    if constraint.min_tokens() != constraint.matcher().min_tokens():
        raise LawViolation(
            "min_tokens_is_exact",
            f"the constraint says {constraint.min_tokens()}, its matcher {constraint.matcher().min_tokens()}",
            path=(),
            vocabulary=constraint.vocabulary,
        )

    def check(at: ReachedState) -> str | None:
        found = distance(at.matcher)
        if at.matcher.is_accepting or found == 0:
            both = f"min_tokens is {found}, is_accepting is {at.matcher.is_accepting}"
            return None if at.matcher.is_accepting and found == 0 else both
        distances = {token: distance_after(at.matcher, token) for token in tried_tokens(at)}
        if not distances:
            return f"no token is allowed, yet min_tokens is {found}" if found < math.inf else None
        nearest = min(distances, key=distances.__getitem__)
        least = 1 + distances[nearest]
        if found > least or (found < least and at.vocabulary.size <= at.effort.tokens):
            return f"min_tokens is {found}; by way of {describe_token(at.vocabulary, nearest)} it is {least}"
        return None

    check_states("min_tokens_is_exact", check, constraint, rng, effort)


@_in_every_state
def budget_mask_is_exact(at: ReachedState) -> str | None:
    """The mask within a budget holds EOS as ever and the tokens after which the rest of it suffices."""
    mask = allowed_tokens(at.matcher, at.vocabulary.size)
    ending = mask & set(at.vocabulary.eos)
    distances = {token: distance_after(at.matcher, token) for token in tried_tokens(at)}
    nearest = at.matcher.min_tokens() or 0
    for budget in sorted({0, max(nearest - 1, 0), nearest, nearest + 1, nearest + at.rng.randint(2, 9)}):
        bitmask = ~empty_masks(at.vocabulary.size)
        at.matcher.fill_mask_within(bitmask, 0, budget)
        within = ids_of(bitmask[0])
        if within & set(at.vocabulary.eos) != ending:
            return f"within a budget of {budget}, EOS is not allowed as in the mask"
        for token, needed in distances.items():
            if (token in within) != (needed < budget):
                name, where = describe_token(at.vocabulary, token), membership_word(within, token)
                return f"within a budget of {budget}, {name} is {where}; {needed} tokens must follow it"
        if not within <= mask:
            return f"within a budget of {budget}, token {min(within - mask)} is allowed against the mask"
        if within != mask and not at.matcher.needs_budget_mask(budget):
            return f"a budget of {budget} leaves out tokens, yet needs_budget_mask says no"
    return None


def check_laws(constraint: AnyConstraint, rng: random.Random, effort: Effort = DEFAULT_EFFORT) -> None:
    """Check every law.

    Raises:
        LawViolation: the first one that does not hold.
    """
    for law in LAWS:
        law(constraint, rng, effort)


@_in_every_state
def mask_iff_accept(at: ReachedState) -> str | None:
    """A token is in the mask iff it is accepted; a refused one changes nothing; a mask is one row only."""
    size = at.vocabulary.size
    garbage = np.array([[at.rng.getrandbits(32) for _ in empty_masks(size)[0]] for _ in range(3)])
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
            return f"token {describe_token(at.vocabulary, token)} {verb}"
        if token not in mask and allowed_tokens(fork, size) != mask:
            return f"the refused token {describe_token(at.vocabulary, token)} changed the mask"
    return None


@_in_every_state
def mask_equals_reference(at: ReachedState) -> str | None:
    """The mask holds the tokens that ``ReferenceMatcher`` allows, and it accepts where that does.

    The reference knows bytes and not which of them the vocabulary can spell; where some byte is no token, a token
    may be blocked if no string is found by way of it.
    """
    reference = at.reference()
    if reference.is_accepting != at.matcher.is_accepting:
        return f"is_accepting is {at.matcher.is_accepting}; the reference says {reference.is_accepting}"
    got = allowed_tokens(at.matcher, at.vocabulary.size)
    for token in at.sampled_tokens():
        after = reference_after(reference, at.vocabulary, token)
        if token in got and after is None:
            return f"{describe_token(at.vocabulary, token)} is in the mask; the reference refuses it"
        if token in got or after is None:
            continue
        if not lacks_bytes(at.vocabulary) or finds_valid_string(after, at.vocabulary, fuel=at.effort.tokens):
            return f"{describe_token(at.vocabulary, token)} is not in the mask; the reference allows it"
    return None


@_in_every_state
def rollback_undoes_accept(at: ReachedState) -> str | None:
    """Rolling back leads through the states that were passed, in reverse, EOS and bytes included."""
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
            return f"token {describe_token(at.vocabulary, token)} is in the mask, yet refused"
        seen.append(snapshot(at.matcher, at.vocabulary))
    while len(seen) > 1:
        count = at.rng.randint(1, len(seen) - 1)
        del seen[len(seen) - count :]
        at.matcher.rollback(count)
        if snapshot(at.matcher, at.vocabulary) != seen[-1]:
            return f"rollback({count}) does not lead to the state that was there {len(seen)} steps in"
    return None


@_in_every_state
def forks_are_independent(at: ReachedState) -> str | None:
    """What happens to a fork does not touch the matcher that it came from, nor the other way round."""
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


@_in_every_state
def forced_tokens_are_unique(at: ReachedState) -> str | None:
    """Forced bytes are all that every continuation shares, and forced tokens spell a start of them.

    The reference tells what is shared. Where some byte is no token, more may be, for some continuations cannot be
    spelled; then the tokens of the mask must agree with it.
    """
    forced = at.matcher.forced_bytes()
    for token in sorted(allowed_tokens(at.matcher, at.vocabulary.size)) if forced else ():
        text = text_of(at.vocabulary, token)
        if not text or text[: len(forced)] != forced[: len(text)]:
            return f"forced_bytes is {forced!r}, yet {describe_token(at.vocabulary, token)} is allowed"
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


def _forced_by_reference(at: ReachedState, forced: bytes) -> str | None:
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


def spelling_invariance(constraint: AnyConstraint, rng: random.Random, effort: Effort = DEFAULT_EFFORT) -> None:
    """The same bytes by other tokens, or fed as bytes, lead to the same future."""
    spellable = {
        data: token for token, data in enumerate(constraint.vocabulary.tokens) if text_of(constraint.vocabulary, token)
    }

    def check(at: ReachedState) -> str | None:
        tokens: list[int] = []
        for _ in range(at.rng.randint(1, 3)):
            texts = [t for t in sorted(allowed_tokens(at.matcher, at.vocabulary.size)) if text_of(at.vocabulary, t)]
            if texts:
                tokens.append(at.rng.choice(texts))
                at.matcher.accept(tokens[-1])
        data = b"".join(at.vocabulary.tokens[token] for token in tokens)
        expected = snapshot(at.matcher, at.vocabulary)
        fed = at.constraint.matcher()
        accept_all(fed, at.path)
        if fed.accept_bytes(data) != len(data) or snapshot(fed, at.vocabulary) != expected:
            return f"the bytes {data!r} and the tokens {tokens} that spell them lead to different states"
        other = other_spelling(data, spellable, at.rng)
        if other is None:
            return None
        spelled = at.constraint.matcher()
        accept_all(spelled, at.path)
        if not accept_all(spelled, other) or snapshot(spelled, at.vocabulary) != expected:
            return f"the tokens {tokens} and {other} both spell {data!r} and lead to different states"
        return None

    check_states("spelling_invariance", check, constraint, rng, effort)


@_in_every_state
def eos_iff_accepting(at: ReachedState) -> str | None:
    """EOS ids are allowed iff the matcher accepts; taking one ends the sequence, and nothing else does."""
    mask = allowed_tokens(at.matcher, at.vocabulary.size)
    if at.matcher.is_terminated:
        return "terminated without EOS"
    for token in at.vocabulary.eos:
        if (token in mask) != at.matcher.is_accepting:
            return f"EOS {token} is {membership_word(mask, token)}, is_accepting is {at.matcher.is_accepting}"
        fork = at.matcher.fork()
        if fork.accept(token) != at.matcher.is_accepting or fork.is_terminated != at.matcher.is_accepting:
            return f"accepting EOS {token} gives is_terminated={fork.is_terminated}"
        if fork.is_terminated and any(fork.accept(other) for other in at.sampled_tokens()):
            return f"a token was accepted after EOS {token}"
    return None


@_in_every_state
def validate_agrees(at: ReachedState) -> str | None:
    """``validate`` counts what ``accept`` would take one after the other, and changes nothing."""
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


def batch_equals_map(
    constraint: AnyConstraint,
    rng: random.Random,
    effort: Effort = DEFAULT_EFFORT,
    *,
    fill_masks: Callable[..., None] | None = None,
) -> None:
    """``fill_masks``, by default that of the engine, writes the rows that ``fill_mask`` writes one by one."""
    fill_all = fill_masks or _engine_fill_masks()

    def check(at: ReachedState) -> str | None:
        matchers = [at.matcher.fork() for _ in range(at.rng.randint(1, 9))]
        for matcher in matchers:
            advance_randomly(matcher, at)
        together, apart = (~empty_masks(at.vocabulary.size, rows=len(matchers)) for _ in range(2))
        fill_all(matchers, together)
        for row, matcher in enumerate(matchers):
            matcher.fill_mask(apart, row)
        rows = np.flatnonzero((together != apart).any(axis=1))
        return f"row {rows[0]} of {len(matchers)} differs from fill_mask" if len(rows) else None

    check_states("batch_equals_map", check, constraint, rng, effort)


def _engine_fill_masks() -> Callable[..., None]:
    from structgen.engine import fill_masks  # here, so that other implementations need not build the engine

    return fill_masks


LAWS: Final[tuple[MatcherLaw, ...]] = (
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
