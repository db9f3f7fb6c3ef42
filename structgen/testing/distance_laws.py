"""The laws about the way to the end: none is dead, and distances and budgets are exact."""

from __future__ import annotations

import math
import random

from structgen.testing.observations import distance, distance_after, tried_tokens, whether_in
from structgen.testing.protocols import AnyConstraint
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

__all__ = ["budget_mask_is_exact", "min_tokens_is_exact", "no_dead_end"]


def no_dead_end(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """Masks are never empty before the end, and from every state the shortest way to it can be taken."""

    def check(at: Reached) -> str | None:
        if not allowed_tokens(at.matcher, at.vocabulary.size) and not at.matcher.is_accepting:
            return "the mask is empty before the end"
        left = at.matcher.min_tokens()
        if left is None:
            return "no sequence of tokens leads to the end"
        while not at.matcher.is_accepting:
            bitmask = empty_bitmask(at.vocabulary.size)
            at.matcher.fill_mask_within(bitmask, 0, left)
            choices = sorted(ids_of(bitmask[0]))
            if not choices:
                return f"no token is allowed within a budget of {left}, the minimum"
            token = at.rng.choice(choices)
            if not at.matcher.accept(token):
                return f"token {shown(at.vocabulary, token)} of the mask within {left} is refused"
            left -= 1
        return None if left >= 0 else f"the end was reached {-left} tokens after the minimum"

    everywhere("no_dead_end", check, constraint, rng, effort)


def min_tokens_is_exact(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
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

    def check(at: Reached) -> str | None:
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
            return f"min_tokens is {found}; by way of {shown(at.vocabulary, nearest)} it is {least}"
        return None

    everywhere("min_tokens_is_exact", check, constraint, rng, effort)


def budget_mask_is_exact(constraint: AnyConstraint, rng: random.Random, effort: Effort = USUAL) -> None:
    """The mask within a budget holds EOS as ever and the tokens after which the rest of it suffices."""

    def check(at: Reached) -> str | None:
        mask = allowed_tokens(at.matcher, at.vocabulary.size)
        ending = mask & set(at.vocabulary.eos)
        distances = {token: distance_after(at.matcher, token) for token in tried_tokens(at)}
        nearest = at.matcher.min_tokens() or 0
        for budget in sorted({0, max(nearest - 1, 0), nearest, nearest + 1, nearest + at.rng.randint(2, 9)}):
            bitmask = ~empty_bitmask(at.vocabulary.size)
            at.matcher.fill_mask_within(bitmask, 0, budget)
            within = ids_of(bitmask[0])
            if within & set(at.vocabulary.eos) != ending:
                return f"within a budget of {budget}, EOS is not allowed as in the mask"
            for token, needed in distances.items():
                if (token in within) != (needed < budget):
                    name, where = shown(at.vocabulary, token), whether_in(within, token)
                    return f"within a budget of {budget}, {name} is {where}; {needed} tokens must follow it"
            if not within <= mask:
                return f"within a budget of {budget}, token {min(within - mask)} is allowed against the mask"
            if within != mask and not at.matcher.needs_budget_mask(budget):
                return f"a budget of {budget} leaves out tokens, yet needs_budget_mask says no"
        return None

    everywhere("budget_mask_is_exact", check, constraint, rng, effort)
