"""What may come next in an output: the mask of grammar and budget, what is forbidden within it, and what is forced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials import Gate, Hypothesis, Potential
from structgen.engine.mask import contains, empty_masks, only_token, without
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from structgen.decode.autoregressive.output import Output

__all__ = ["Allowed", "ForbiddenTokens", "ForcedSteps"]

_NOTHING: Final[Set[int]] = frozenset()


@final
class Allowed:
    """What may come next in one output, and what may not although the grammar allows it.

    Attributes:
        mask: the token mask of the next token, as it was filled last, int32 ``[ceil(V / 32)]``.
        blocked: what must not come, by the tokens before it; an EOS is the stop.
        floor: how many tokens at the start are not taken back, even if nothing is left to follow them.

    Args:
        output: see above.
        potentials: what they forbid is blocked where it would come.
    """

    def __init__(self, output: Output, potentials: Sequence[Potential]) -> None:
        self._rows: NDArray[np.int32] = empty_masks(output.vocabulary)
        self.mask = self._rows[0]
        self.blocked: dict[tuple[int, ...], set[int]] = {}
        self.floor = 0
        self._output = output
        self._eos = output.vocabulary.eos
        self._not_eos = without(np.full_like(self.mask, -1), self._eos)
        self._has_potentials = bool(potentials)
        self._gate = Gate(potentials, output.constraint.grammar, output.vocabulary)

    @property
    def is_plain(self) -> bool:
        """Whether only grammar and budget have a say."""
        return not self.blocked and not self._has_potentials

    @property
    def ordinary(self) -> NDArray[np.int32]:
        """The mask without the stop."""
        words: NDArray[np.int32] = self.mask & self._not_eos
        return words

    @property
    def ends(self) -> list[int]:
        """The EOS ids that the mask allows."""
        return [token for token in self._eos if contains(self.mask, token)]

    def fill(self) -> None:
        """Fill the mask of the next token: the tokens after which the output can be completed within the budget."""
        self._output.matcher.fill_mask(self._rows, budget=self._output.remaining)
        self.exclude()

    def exclude(self) -> None:
        """Take out of the mask what is blocked, and what potentials are known to forbid."""
        blocked = self.blocked_here()
        if blocked:
            self.mask[:] = without(self.mask, blocked)
        forbidding = self._gate.mask(self._output.tokens)
        if forbidding is not None:
            self.mask &= forbidding | ~self._not_eos  # the stop is asked about when it comes

    def grammar_goes_on(self) -> bool:
        """Fill the mask with what the grammar alone allows; return whether that is more than the stop."""
        self._output.matcher.fill_mask(self._rows)
        return bool(self.ordinary.any())

    def admits(self, token: int | None) -> bool:
        """Ask the potentials about a token or the stop; what they forbid is blocked here from now on."""
        if self._gate.admits(self._output.tokens, token):
            return True
        self.block(self._eos if token is None else (token,))
        return False

    def blocked_here(self) -> Set[int]:
        """What is blocked after the tokens that stand."""
        return self.blocked.get(tuple(self._output.tokens), _NOTHING) if self.blocked else _NOTHING

    def blocked_after(self, tokens: tuple[int, ...]) -> Set[int]:
        """What is blocked where the output went on with ``tokens``."""
        return self.blocked.get((*self._output.tokens, *tokens), _NOTHING) if self.blocked else _NOTHING

    def block(self, tokens: Iterable[int], length: int | None = None) -> None:
        """Let none of ``tokens`` come after the first ``length`` tokens of the output; None is after all of them."""
        self.blocked.setdefault(tuple(self._output.tokens[:length]), set()).update(tokens)

    def turn_back(self) -> None:
        """Give up the last token where all that may follow it is blocked.

        Raises:
            GenerationError: it is not to be taken back, or there is none.
        """
        tokens = self._output.tokens
        length = len(tokens)
        if length <= self.floor:
            raise self.nothing_left()
        self.block(tokens[-1:], length - 1)
        self._output.truncate(length - 1)

    def nothing_left(self) -> GenerationError:
        """The refusal to go on where all that the grammar allows is blocked."""
        return GenerationError(
            "generation",
            "all that may follow was rejected",
            evidence=self._standing(),
            remedy="loosen the checks, or let the grammar say what they want",
        )

    def dead_end(self) -> GenerationError:
        """The refusal to go on where the grammar allows nothing."""
        return GenerationError(
            "generation",
            "no token continues the output and it is not complete",
            evidence=self._standing(),
            remedy="check that the vocabulary can spell what the grammar needs",
        )

    def _standing(self) -> str:
        verification = self._gate.verification()
        standing = f"it stands at {len(self._output.tokens)} tokens and ends with {self._output.data[-40:]!r}"
        return f"{standing}; {verification}" if verification else standing


@final
class ForcedSteps:
    """Takes what leaves no choice.

    Args:
        output: what is written.
        allowed: what may come next in it.
    """

    def __init__(self, output: Output, allowed: Allowed) -> None:
        self._output = output
        self._allowed = allowed

    def take(self) -> list[int]:
        """Take the tokens that are forced here and return them, or finish where nothing more may come.

        Where neither is so, the mask of the next token is filled, and allows several or one with the stop.

        Raises:
            GenerationError: nothing may come, and the output is not complete.
        """
        return self._force() or self._look()

    def end(self) -> None:
        """Finish where the model is not asked: the grammar, or only the budget, allows nothing more."""
        self._output.end("length" if self._allowed.grammar_goes_on() else "stop")

    def _force(self) -> list[int]:
        """Take the tokens of the text that every continuation shares, as far as the budget allows."""
        output, allowed, matcher = self._output, self._allowed, self._output.matcher
        run: list[int] = []
        for token in matcher.forced_tokens():
            remaining = output.remaining
            if remaining <= 0:
                break
            tight = matcher.needs_budget_mask(remaining)
            if token in allowed.blocked_here() or not allowed.admits(token) or not matcher.accept(token):
                break
            if tight and not self._is_completable(remaining - 1):
                matcher.rollback(1)  # the canonical tokens are too many here: let the budgeted mask choose
                break
            output.add_forced(token)
            run.append(token)
        return run

    def _is_completable(self, budget: int) -> bool:
        needed = self._output.matcher.min_tokens()
        return needed is not None and needed <= budget

    def _look(self) -> list[int]:
        """Fill the mask of the next token; take the token if it is the only choice, finish if there is none."""
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
    """Forbids what was rejected.

    Args:
        blocked: which tokens must not come, by the tokens before them; an EOS is the stop.
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
