"""Fixed points: all tokens of a window are chosen at once, repeatedly, until nothing changes.

Where each token is a function of those before it, as in greedy decoding or with fixed noise, the output of sequential
decoding is the only sequence that agrees at every position. Each round settles at least one more token, and more where
the draft tokens were right.

Sources: Y. Song et al., "Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving" (ICML 2021,
arXiv 2002.03629); A. Santilli et al., "Accelerating Transformer Inference for Translation via Parallel Decoding" (ACL
2023, arXiv 2305.10427), for greedy decoding of language models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

__all__ = ["FixedPoint", "find_fixed_point", "settled"]


@final
@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The result of the iteration.

    Attributes:
        tokens: as writing one after the other gives them; fewer than were drafted if it ends before.
        rounds: how often all positions were chosen.
    """

    tokens: tuple[int, ...]
    rounds: int


def find_fixed_point(choose: Callable[[Sequence[int]], Sequence[int | None]], draft: Sequence[int]) -> FixedPoint:
    """Iterate from draft tokens until nothing changes.

    Args:
        choose: given tokens, says for each position the token that comes after those before it; one forward pass.  The
            answer for a position must not depend on tokens from it on.  None where nothing can follow: the tokens
            before are no prefix of an output, or a complete one.
        draft: as many tokens as are wanted.

    Complexity: at most as many rounds as there are tokens.
    """
    tokens, right, rounds = list(draft), 0, 0
    while right < len(tokens):
        chosen = choose(tuple(tokens))
        rounds += 1
        right = settled(tokens, chosen)
        if chosen[right - 1] is None:
            del tokens[right - 1 :]  # what is settled ends here
            break
        tokens = [old if new is None else new for old, new in zip(tokens, chosen, strict=True)]
    return FixedPoint(tuple(tokens), rounds)


def settled(tokens: Sequence[int], chosen: Sequence[int | None]) -> int:
    """The number of chosen tokens that equal those of sequential decoding.

    These are all tokens up to and with the first that differs from its draft token.
    """
    for position, (old, new) in enumerate(zip(tokens, chosen, strict=True)):
        if old != new:
            return position + 1
    return len(tokens)
