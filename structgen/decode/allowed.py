"""What may come next in an output: the mask of the grammar and the budget, and what is withheld from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.mask_words import has_bit, words_without
from structgen.decode.potentials import Gate
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from structgen.decode.output import Output
    from structgen.decode.potentials import Potential

__all__ = ["Allowed"]

_NOTHING: Final[Set[int]] = frozenset()


@final
class Allowed:
    """What may come next in one output, and what may not although the grammar allows it.

    Attributes:
        mask: the token mask of the next token, as it was filled last, int32 ``[ceil(V / 32)]``.
        withheld: what must not come, by the tokens before it; an EOS is the stop.
        floor: how many tokens at the beginning are not taken back, even if nothing is left to follow them.

    Args:
        output: see above.
        potentials: what they forbid is withheld where it would come.
    """

    def __init__(self, output: Output, potentials: Sequence[Potential]) -> None:
        size = output.vocabulary.size
        self._rows: NDArray[np.int32] = np.zeros((1, (size + 31) // 32), dtype=np.int32)
        self.mask = self._rows[0]
        self.withheld: dict[tuple[int, ...], set[int]] = {}
        self.floor = 0
        self._output = output
        self._eos = output.vocabulary.eos
        self._not_eos = words_without(self._eos, size)
        self._has_potentials = bool(potentials)
        self._gate = Gate(potentials, output.constraint.grammar, output.vocabulary)

    @property
    def is_plain(self) -> bool:
        """Whether only grammar and budget have a say."""
        return not self.withheld and not self._has_potentials

    @property
    def ordinary(self) -> NDArray[np.int32]:
        """The mask without the stop."""
        words: NDArray[np.int32] = self.mask & self._not_eos
        return words

    @property
    def ends(self) -> list[int]:
        """The EOS ids that the mask allows."""
        return [token for token in self._eos if has_bit(self.mask, token)]

    def fill(self) -> None:
        """Fill the mask of the next token.

        Where the grammar's mask may lead to a state from which the output cannot be completed in the tokens that are
        left, it is replaced by one that cannot.
        """
        remaining, matcher = self._output.remaining, self._output.matcher
        if remaining > 0 and matcher.needs_budget_mask(remaining):
            matcher.fill_mask_within(self._rows, 0, remaining)
        else:
            matcher.fill_mask(self._rows)
        self.exclude()

    def exclude(self) -> None:
        """Take out of the mask what is withheld, and what potentials are known to forbid."""
        withheld = self.withheld_here()
        if withheld:
            self.mask &= words_without(tuple(withheld), self._output.vocabulary.size)
        forbidding = self._gate.mask(self._output.tokens)
        if forbidding is not None:
            self.mask &= forbidding | ~self._not_eos  # the stop is asked about when it comes

    def grammar_goes_on(self) -> bool:
        """Fill the mask with what the grammar alone allows; return whether that is more than the stop."""
        self._output.matcher.fill_mask(self._rows)
        return bool(self.ordinary.any())

    def admits(self, token: int | None) -> bool:
        """Ask the potentials about a token or the stop; what they forbid is withheld here from now on."""
        if self._gate.admits(self._output.tokens, token):
            return True
        self.withhold(self._eos if token is None else (token,))
        return False

    def withheld_here(self) -> Set[int]:
        """What is withheld after the tokens that stand."""
        return self.withheld.get(tuple(self._output.tokens), _NOTHING) if self.withheld else _NOTHING

    def withheld_after(self, tokens: tuple[int, ...]) -> Set[int]:
        """What is withheld where the output went on with ``tokens``."""
        return self.withheld.get((*self._output.tokens, *tokens), _NOTHING) if self.withheld else _NOTHING

    def withhold(self, tokens: Iterable[int], length: int | None = None) -> None:
        """Let none of ``tokens`` come after the first ``length`` tokens of the output; None is after all of them."""
        self.withheld.setdefault(tuple(self._output.tokens[:length]), set()).update(tokens)

    def turn_back(self) -> None:
        """Give up the last token where all that may follow it is withheld.

        Raises:
            GenerationError: it is not to be taken back, or there is none.
        """
        tokens = self._output.tokens
        length = len(tokens)
        if length <= self.floor:
            raise self.nothing_left()
        self.withhold(tokens[-1:], length - 1)
        self._output.truncate(length - 1)

    def nothing_left(self) -> GenerationError:
        """The refusal to go on where all that the grammar allows is withheld."""
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
        verdict = self._gate.verdict()
        standing = f"it stands at {len(self._output.tokens)} tokens and ends with {self._output.data[-40:]!r}"
        return f"{standing}; {verdict}" if verdict else standing
