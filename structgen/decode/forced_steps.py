"""The steps of an output for which no model is asked: forced tokens, the only token of a mask, the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from structgen.decode.mask_words import only_token

if TYPE_CHECKING:
    from structgen.decode.allowed import Allowed
    from structgen.decode.output import Output

__all__ = ["ForcedSteps"]


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
            if token in allowed.withheld_here() or not allowed.admits(token) or not matcher.accept(token):
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
            is_accepting = matcher.is_accepting and allowed.withheld_here().isdisjoint(eos)
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
            if token in allowed.withheld_here():
                continue
            output.add_forced(token)
            return [token]
