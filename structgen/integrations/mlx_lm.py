"""A constraint in mlx-lm: a logits processor for ``generate``, ``stream_generate``, batches and draft models.

>>> model, tokenizer = mlx_lm.load("mlx-community/SmolLM2-135M-Instruct")                        # doctest: +SKIP
>>> constraint = sg.compile(sg.json_schema(schema), vocabulary(tokenizer))                       # doctest: +SKIP
>>> processor = ConstraintLogitsProcessor(constraint, max_tokens=200)                            # doctest: +SKIP
>>> mlx_lm.generate(model, tokenizer, prompt, max_tokens=200, logits_processors=[processor])     # doctest: +SKIP

Source: mlx-lm 0.32, ``mlx_lm/generate.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.engine import Constraint, Vocabulary, row_temperatures
from structgen.engine.arguments import wrong_grammar
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import BudgetError, GenerationError
from structgen.integrations.prefix_states import PrefixStates
from structgen.travel import Live

if TYPE_CHECKING:
    from structgen.integrations.prefix_states import PrefixState

__all__ = ["ConstraintLogitsProcessor", "vocabulary"]

_SUBJECT: Final = "logits processor"
_STATES: Final = 256


def vocabulary(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer of mlx-lm, with all EOS ids that mlx-lm stops at.

    Raises:
        VocabularyError: it is no tokenizer that ``Vocabulary.load`` reads.
    """
    eos = sorted(getattr(tokenizer, "eos_token_ids", ()) or ())
    return Vocabulary.load(getattr(tokenizer, "_tokenizer", tokenizer), eos=eos or None)


@final
class ConstraintLogitsProcessor(Live):
    """Masks the logits of tokens after which the output cannot become a string of the grammar.

    One processor serves one sequence (or several after ``reset()``); a batch takes one list of processors for each
    sequence.  The state is looked up by the tokens, since a draft model and the model that checks its drafts go back to
    earlier ones.  After EOS only EOS is allowed.

    Where a part of the grammar has a temperature of its own, the logits in it are divided by it; mlx-lm's sampler
    divides by its own after that, so leave that at 1 for such a grammar.

    Args:
        constraint: compiled for ``vocabulary(tokenizer)``.
        max_tokens: complete the output within this many tokens.  Without it, mlx-lm may cut the output off.
        prompt_length: tokens at the start that are no output; by default the length at the first call, which is right
            for all functions of mlx-lm.

    Raises:
        BudgetError: the shortest string takes more than ``max_tokens``.
        ArgumentError: it is no constraint.
    """

    def __init__(
        self, constraint: Constraint, *, max_tokens: int | None = None, prompt_length: int | None = None
    ) -> None:
        if not isinstance(constraint, Constraint):
            raise wrong_grammar("ConstraintLogitsProcessor", constraint, expected="a Constraint")
        if max_tokens is not None and constraint.min_tokens() > max_tokens:
            raise BudgetError(budget=max_tokens, needed=constraint.min_tokens())
        self._constraint = constraint
        self._max_tokens = max_tokens
        self._given_length = prompt_length
        self._words = empty_masks(constraint.vocabulary)
        self.reset()

    def reset(self) -> None:
        """Forget the sequence, so that the processor can serve another."""
        self._length = self._given_length
        self._prompt: bytes | None = None
        self._states = PrefixStates(self._constraint, _STATES)

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Return the logits with what the grammar excludes at negative infinity.

        Args:
            tokens: ``mx.array``, ``[length]``, the prompt and the output so far.
            logits: ``mx.array``, ``[1, W]``; ``W`` may exceed the size of the vocabulary.

        Raises:
            GenerationError: the tokens have left the language, or belong to another sequence.
            LimitExceeded: a bound of ``Limits`` was reached.
        """
        import mlx.core as mx

        state, written = self._state(np.array(tokens, dtype=np.int64).reshape(-1))
        allowed = np.zeros(logits.shape[-1], dtype=np.bool_)
        ids = self._allowed(state, written)
        allowed[ids[ids < len(allowed)]] = True
        masked = mx.where(mx.array(allowed), logits, mx.array(-mx.inf, dtype=logits.dtype))
        if state.matcher is None or not self._constraint.has_temperatures:
            return masked
        (temperature,) = row_temperatures([state.matcher])
        if temperature > 0:
            return masked / temperature
        best = mx.arange(masked.shape[-1]) == mx.argmax(masked, axis=-1, keepdims=True)
        return mx.where(best, masked, mx.array(-mx.inf, dtype=logits.dtype))

    def _state(self, tokens: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[PrefixState, int]:
        if self._length is None:
            self._length = len(tokens)
        prompt = tokens[: self._length].tobytes()
        if self._prompt is None:
            self._prompt = prompt
        if len(tokens) < self._length or prompt != self._prompt:
            raise GenerationError(
                _SUBJECT,
                f"the tokens do not begin with the {self._length} prompt tokens of its first call",
                evidence=f"there are {len(tokens)}",
                remedy="make a new ConstraintLogitsProcessor for each sequence, or call reset()",
            )
        output = np.ascontiguousarray(tokens[self._length :])
        state = self._states.state(output)
        if state.limit is not None:
            raise state.limit
        if state.refused_at is not None:
            before = self._constraint.vocabulary.decode(output[: state.refused_at].tolist())
            raise GenerationError(
                _SUBJECT,
                f"token {int(output[state.refused_at])} at position {state.refused_at} is outside the grammar",
                evidence=f"the output before it ends with {before[-40:]!r}",
                remedy="let no other processor raise logits after this one",
            )
        return state, len(output)

    def _allowed(self, state: PrefixState, written: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if state.matcher is None:
            return np.array(self._constraint.vocabulary.eos, dtype=np.int64)
        left = None if self._max_tokens is None else max(self._max_tokens - written, 0)  # mlx-lm runs a token ahead
        state.matcher.fill_mask(self._words, budget=left)
        return allowed_ids(self._words[0]).astype(np.int64)
