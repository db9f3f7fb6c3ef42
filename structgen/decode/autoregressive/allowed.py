"""The allowed tokens of one output: the first stage of a token's walk through the loop.

``ForcedSteps`` takes tokens that leave no choice.  ``Allowed`` fills the mask of the next token: the tokens that the
grammar allows within the budget, without those that were rejected or that potentials forbid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials import Gate, Hypothesis, Potential
from structgen.engine.mask import contains, empty_masks, only_token, without
from structgen.errors import GenerationError, LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.autoregressive.output import Output

__all__ = ["Allowed", "ForbiddenTokens", "ForcedSteps"]

_NOTHING: Final[Set[int]] = frozenset()


@final
class Allowed:
    """The mask of the next token, and the tokens that are blocked although the grammar allows them.

    Attributes:
        mask: the token mask, as it was filled last, int32 ``[ceil(V / 32)]``.
        blocked: blocked tokens, by the tokens before them.
        floor: how many tokens at the start are never removed, even if nothing is left to follow them.

    Args:
        output: the output.
        potentials: tokens that they forbid are blocked.
    """

    def __init__(self, output: Output, potentials: Sequence[Potential]) -> None:
        self._rows: NDArray[np.int32] = empty_masks(output.vocabulary)
        self.mask = self._rows[0]
        self.blocked: dict[tuple[int, ...], set[int]] = {}
        self.floor = 0
        self._output = output
        self._eos = output.vocabulary.eos
        self._not_eos = without(np.full_like(self.mask, -1), self._eos)
        self._eos_words = np.unique(np.array(self._eos, dtype=np.intp) >> 5)
        self._eos_bits = ~self._not_eos[self._eos_words]
        self._has_potentials = bool(potentials)
        self._gate = Gate(potentials, output.constraint.grammar, output.vocabulary)

    @property
    def is_plain(self) -> bool:
        """Whether the mask depends on grammar and budget alone."""
        return not self.blocked and not self._has_potentials

    @property
    def ordinary(self) -> NDArray[np.int32]:
        """The mask without EOS."""
        words: NDArray[np.int32] = self.mask & self._not_eos
        return words

    @property
    def ends(self) -> list[int]:
        """The EOS ids that the mask allows."""
        return [token for token in self._eos if contains(self.mask, token)]

    def fill(self) -> None:
        """Fill the mask with the tokens after which the output can be completed within the budget."""
        self._output.matcher.fill_mask(self._rows, budget=self._output.remaining)
        self.exclude()

    def exclude(self) -> None:
        """Remove blocked tokens from the mask, and tokens that potentials forbid by a mask of their own."""
        blocked = self.blocked_here()
        if blocked:
            self.mask[:] = without(self.mask, blocked)
        self.restrict(self.mask)

    def restrict(self, mask: NDArray[np.int32], ahead: tuple[int, ...] = ()) -> None:
        """Remove from a mask after the output and ``ahead`` what potentials forbid by a mask of their own, not EOS."""
        if not self._has_potentials:
            return
        ends = mask[self._eos_words] & self._eos_bits
        before, tokens = mask.copy(), [*self._output.tokens, *ahead]
        self._gate.narrow(tokens, mask)
        mask[self._eos_words] |= ends  # potentials are queried about EOS when it is chosen
        if not mask.any():
            self._gate.count_emptied(tokens, before)

    def grammar_goes_on(self) -> bool:
        """Fill the mask without the budget; return whether it allows more than EOS, or is not known for a limit."""
        try:
            self._output.matcher.fill_mask(self._rows)
        except LimitExceeded:  # the output is complete: better to report a cut too many
            return True
        return bool(self.ordinary.any())

    def admits_ahead(self, ahead: tuple[int, ...], token: int | None) -> bool:
        """Return whether the potentials allow a token, None for EOS, after the output and ``ahead``."""
        return not self._has_potentials or self._gate.admits([*self._output.tokens, *ahead], token)

    def admits(self, token: int | None) -> bool:
        """Return whether the potentials allow a token, None for EOS; block it here if they do not."""
        if self._gate.admits(self._output.tokens, token):
            return True
        self.block(self._eos if token is None else (token,))
        return False

    def blocked_here(self) -> Set[int]:
        """The tokens that are blocked after the output."""
        return self.blocked.get(tuple(self._output.tokens), _NOTHING) if self.blocked else _NOTHING

    def blocked_after(self, tokens: tuple[int, ...]) -> Set[int]:
        """The tokens that are blocked after the output and ``tokens``."""
        return self.blocked.get((*self._output.tokens, *tokens), _NOTHING) if self.blocked else _NOTHING

    def block(self, tokens: Iterable[int], length: int | None = None) -> None:
        """Block ``tokens`` after the first ``length`` tokens of the output; None is all of them."""
        self.blocked.setdefault(tuple(self._output.tokens[:length]), set()).update(tokens)

    def turn_back(self) -> None:
        """Remove and block the last token, since everything that may follow it is blocked.

        Raises:
            GenerationError: it is within ``floor``, or there is no token.
        """
        tokens = self._output.tokens
        length = len(tokens)
        if length <= self.floor:
            raise self.nothing_left()
        self.block(tokens[-1:], length - 1)
        self._output.truncate(length - 1)

    def nothing_left(self) -> GenerationError:
        """The error if every token that the grammar allows is blocked."""
        return GenerationError(
            "generation",
            "every token allowed here was rejected by a validator or potential",
            evidence=self._state(),
            remedy="relax it, or express the rule in the grammar",
        )

    def dead_end(self) -> GenerationError:
        """The error if the grammar allows no token and the output is not complete."""
        return GenerationError(
            "generation",
            "no token continues the output and it is not complete",
            evidence=self._state(),
            remedy="check that the vocabulary can spell what the grammar needs",
        )

    def _state(self) -> str:
        culprits = self._gate.culprits()
        state = f"it has {len(self._output.tokens)} tokens so far and ends with {self._output.data[-40:]!r}"
        return f"{state}; {culprits}" if culprits else state


@final
class ForcedSteps:
    """Takes the tokens that leave no choice."""

    def __init__(self, output: Output, allowed: Allowed) -> None:
        self._output = output
        self._allowed = allowed

    def take(self) -> list[int]:
        """Take the forced tokens and return them, or complete the output if nothing more may come.

        If it returns none and the output goes on, the mask of the next token is filled and leaves a choice.

        Raises:
            GenerationError: no token may come, and the output is not complete.
        """
        return self._force() or self._take_only()

    def end(self) -> None:
        """Complete the output without the model.

        The finish reason is ``"length"`` if the grammar allows more tokens, else ``"stop"``.
        """
        self._output.end("length" if self._allowed.grammar_goes_on() else "stop")

    def _force(self) -> list[int]:
        """Take the forced tokens within the budget, up to one that is blocked or that the potentials forbid."""
        output, allowed, matcher = self._output, self._allowed, self._output.matcher
        run = matcher.advance_forced(output.remaining)
        taken = 0
        try:
            for token in run:
                if token in allowed.blocked_here() or not allowed.admits(token):
                    break
                output.add_forced(token)
                taken += 1
        finally:  # a potential may raise an error
            matcher.rollback(len(run) - taken)
        return run[:taken]

    def _take_only(self) -> list[int]:
        """Fill the mask of the next token; take the token if only one is allowed; end the output if none is allowed."""
        output, allowed, matcher = self._output, self._allowed, self._output.matcher
        eos = output.vocabulary.eos
        while True:
            allowed.fill()
            ordinary = allowed.ordinary
            is_accepting = matcher.is_accepting and allowed.blocked_here().isdisjoint(eos)
            if output.remaining <= 0 or not ordinary.any():
                if is_accepting and allowed.admits(None):
                    self.end()
                    return []
                if allowed.is_plain:
                    raise allowed.dead_end()
                allowed.turn_back()
                continue
            token = None if is_accepting and eos else only_token(ordinary)
            if token is None or (allowed.admits(token) and not matcher.accept(token)):
                return []
            if token in allowed.blocked_here():
                continue
            output.add_forced(token)
            return [token]


@final
class ForbiddenTokens(Potential):
    """Forbids blocked tokens.

    Args:
        blocked: blocked tokens, by the tokens before them.
    """

    def __init__(self, blocked: Mapping[tuple[int, ...], Set[int]]) -> None:
        self._blocked = blocked

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        tokens = hypothesis.tokens
        for before, ids in self._blocked.items():
            length = len(before)
            if len(tokens) > length and tokens[length] in ids and tokens[:length] == before:
                return -np.inf
        return 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        ids = self._blocked.get(hypothesis.tokens, frozenset())
        return self.prefix(hypothesis) if ids.isdisjoint(hypothesis.vocabulary.eos) else -np.inf
