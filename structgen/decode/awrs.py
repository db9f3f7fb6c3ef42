"""Adaptive weighted rejection sampling: a token that a predicate admits, asked of few tokens, with an unbiased weight.

Masking asks a predicate about the whole vocabulary.  Here tokens are drawn from the model's law ``p`` and rejected
until one is admitted; that one has the law of masking.  What masking would also know, the probability ``Z`` of all
admitted tokens together, is estimated from how the draws went, by a weight that is right on average for every token:

    E[weight 1{token = x}] = p(x) if x is admitted, else 0

which is what importance sampling and sequential Monte Carlo need.

Source: B. Lipkin et al., "Fast Controlled Generation from Language Models with Adaptive Weighted Rejection Sampling"
(COLM 2025, arXiv 2504.05410).  The published code finds the mass that is left as 1 minus what was rejected, and gives
weight zero where that is below 1e-5; here it is summed from what is left, so that any mass has its weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Generic, TypeVar, final

from structgen.decode.urn import Urn

__all__ = ["PEAKED", "Weighted", "geometric", "recursive", "weighted"]

Number = TypeVar("Number", float, Fraction)

PEAKED: Final = 2 / 3
"""From this probability of the likeliest token on, ``weighted`` uses the geometric estimator."""


@final
@dataclass(frozen=True, slots=True)
class Weighted(Generic[Number]):
    """What a draw came to.

    Attributes:
        token: the first that was admitted; None where none was found, and then the weight is zero.
        weight: see the module.
        asked: how many tokens the predicate was asked about.
    """

    token: int | None
    weight: Number
    asked: int


def weighted(
    urn: Urn[Number], likeliest: Number, admits: Callable[[int], bool], *, most_rejects: int | None = None
) -> Weighted[Number]:
    """Draw by the estimator that asks less.

    If one token has two thirds of the probability or more, a second draw is likely to meet it again, and the geometric
    estimator need not ask then; elsewhere the recursive one asks about one token after the first that is admitted, and
    its weight varies less.  The rule looks at the law alone, not at answers, so the choice leaves both unbiased.

    Args:
        urn: the full law.
        likeliest: the probability of its likeliest token.
        admits: the predicate.
        most_rejects: give up after so many rejected tokens; the weight is unbiased all the same.

    Raises:
        ValueError: ``most_rejects`` is below 1.
    """
    if likeliest >= PEAKED:
        return geometric(urn, admits, most_rejects=most_rejects)
    return recursive(urn, admits, most_rejects=most_rejects)


def recursive(urn: Urn[Number], admits: Callable[[int], bool], *, most_rejects: int | None = None) -> Weighted[Number]:
    """Draw without replacement until a token is admitted, and ask about one more.

    The weight is the mass that was left when the token was drawn, if the next one is admitted too or there is none;
    else the token's own probability.  It is exactly ``Z``, without any variance, if only one token is admitted.

    Args:
        urn: the law; what was asked about is out of it afterwards.
        admits: the predicate.
        most_rejects: give up after so many rejected tokens; the weight is unbiased all the same.

    Raises:
        ValueError: ``most_rejects`` is below 1.

    Complexity: at most one question a token, about ``1 / Z`` and never more than the tokens that are there.
    """
    _check(most_rejects)
    asked = 0
    while not urn.is_empty:
        left = urn.left
        token = urn.take()
        asked += 1
        if not admits(token):
            if asked == most_rejects:
                break
            continue
        if asked == most_rejects or urn.is_empty:
            return Weighted(token, left, asked)
        # Of the mass that is left behind the token, the next one tells the admitted share, on average.
        weight = left if admits(urn.take()) else urn.probability(token)
        return Weighted(token, weight, asked + 1)
    return Weighted(None, urn.left * 0, asked)


def geometric(
    urn: Urn[Number], admits: Callable[[int], bool], *, accepts: int = 2, most_rejects: int | None = None
) -> Weighted[Number]:
    """Draw with replacement until ``accepts`` draws were admitted.

    Draws that meet a token that was asked about before are not asked again, and draws among the rejected ones are not
    even made: how many there are has a geometric law.  Of ``n`` draws of which ``k`` were admitted, without the last
    one, the weight is ``k / (n - 1)``: the share of the admitted among all but the last draw.

    Args:
        urn: the law; rejected tokens are out of it afterwards.
        admits: the predicate.
        accepts: at least 2; more make the weight vary less.
        most_rejects: give up after so many rejected draws, repeated ones included; unbiased all the same.

    Raises:
        ValueError: ``accepts`` is below 2, or ``most_rejects`` below 1.

    Source: J. B. S. Haldane, "On a method of estimating frequencies" (Biometrika 1945), for ``(k - 1) / (n - 1)``.
    """
    _check(most_rejects)
    if accepts < 2:
        raise ValueError(f"accepts must be at least 2; found {accepts!r}")
    most = float("inf") if most_rejects is None else most_rejects
    known: set[int] = set()
    first: int | None = None
    accepted, rejected, asked = 0, 0.0, 0
    while accepted < accepts and not urn.is_empty:
        if asked > len(known):
            rejected += urn.misses(most - rejected)
        if rejected >= most:
            break
        token = urn.take()
        if token not in known:
            asked += 1
            if not admits(token):
                rejected += 1
                if rejected >= most:
                    break
                continue
            known.add(token)
        urn.put_back(token)
        accepted += 1
        first = token if first is None else first
    zero = urn.left * 0
    if first is None:
        return Weighted(None, zero, asked)
    draws = accepted + rejected - 1
    share = Fraction(min(accepted, accepts - 1)) / Fraction(draws)
    return Weighted(first, zero + share, asked)


def _check(most_rejects: int | None) -> None:
    if most_rejects is not None and most_rejects < 1:
        raise ValueError(f"most_rejects must be at least 1; found {most_rejects!r}")
