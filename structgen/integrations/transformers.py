"""Constraints in ``transformers.generate``: as a logits processor, and as a decoding loop of its own.

>>> processor = ConstraintLogitsProcessor(schema, tokenizer)                                     # doctest: +SKIP
>>> model.generate(**inputs, logits_processor=[processor])                                      # doctest: +SKIP
>>> model.generate(**inputs, custom_generate=constrained_generate, constraint=constraint)       # doctest: +SKIP

The processor works with every decoding method of transformers.  The loop takes greedy search and sampling only, runs
forced tokens through the model together, and always ends with a complete output.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from structgen.errors import BudgetError, CutWarning, GenerationError, LimitExceeded, ModelError, install
from structgen.travel import Live

try:
    import torch
    from transformers import LogitsProcessor
except ImportError as error:
    raise ModelError(
        "structgen.integrations.transformers",
        "torch and transformers are needed",
        evidence=str(error),
        remedy=install("models"),
    ) from error
import numpy as np
from numpy.typing import NDArray
from structgen_kernels.arguments import FLOATS
from structgen_kernels.masks.apply_mask import apply_mask
from structgen_kernels.masks.mask_pool import MaskPool
from structgen_kernels.masks.mask_rows import MaskRows

from structgen.engine import fill_masks, row_temperatures
from structgen.engine.mask import pack
from structgen.integrations.prefix_states import PrefixState, PrefixStates
from structgen.integrations.transformers_loop import constrained_generate, constraint_from

if TYPE_CHECKING:
    from structgen.engine import Constraint
    from structgen.grammar.nodes import Grammar

__all__ = ["ConstraintLogitsProcessor", "constrained_generate"]

_STATES: Final = 512
_STATES_PER_ROW: Final = 8
_NORMALISED: Final = 1e-3
_LOSES: Final = -1e6
_POOLED: Final = frozenset({"cuda"})
"""Types of devices to which rows of masks are worth sending once only."""
_DENSE_ROWS: Final = 64
_SPARSE_ROWS: Final = 512


@final
class ConstraintLogitsProcessor(Live, LogitsProcessor):
    """Masks the logits of tokens after which the output cannot become a string of the grammar.

    One processor serves one call of ``generate`` (or several after ``reset()``).  The state of a row is looked up by
    its tokens, so rows may be reordered (beams) and go back (rejected drafts).  After an EOS id only EOS ids and the
    padding token are allowed.  On a GPU masks are uploaded once and kept there; a step sends their numbers.

    A row that meets a bound of ``Limits`` ends there, and the others go on: only EOS follows, a ``CutWarning`` says
    that the output is not complete, and ``limited`` has the error.  A beam that meets one loses against all others.

    Where a part of the grammar has a temperature of its own, the scores of rows in it are divided by it; transformers
    divides by the ``temperature`` of its configuration after that, so leave it at 1 for such a grammar.

    Attributes:
        limited: the errors of outputs that a limit ended, by their tokens, EOS and padding left out.

    Args:
        constraint: compiled for the model's vocabulary; or, with ``vocabulary``, a grammar, a JSON Schema (a ``dict``),
            or a Python type, whose JSON is written.
        vocabulary: a ``Vocabulary`` or the model's tokenizer, for which a grammar is compiled.  A tokenizer knows one
            EOS id; for a model with several take ``Vocabulary.load(tokenizer, eos=[...])``.
        prompt_length: tokens at the start of every row that are no output; by default the length of the rows
            at the first call, which is right for ``generate``.
        max_new_tokens: complete every output within this many tokens.  Without it, ``generate`` may cut an output off.
        pad_token_id: what ``generate`` fills up rows with; by default whatever follows an EOS id.
        strict: whether a row with a token that its mask excluded is an error.  None: it is, except for rows whose
            scores are normalised log-probabilities, as in beam search, where such rows occur if there are fewer
            continuations than beams; they have score negative infinity and lose against every other.  Pass False where
            drafts come from a model without the constraint.

    Raises:
        BudgetError: the shortest string takes more than ``max_new_tokens``.
        ArgumentError: there is no constraint, and nothing that one can be compiled from.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        constraint: Constraint | Grammar | Mapping[str, Any] | type,
        vocabulary: object = None,
        *,
        prompt_length: int | None = None,
        max_new_tokens: int | None = None,
        pad_token_id: int | None = None,
        strict: bool | None = None,
    ) -> None:
        constraint = constraint_from(constraint, vocabulary, "ConstraintLogitsProcessor")
        if max_new_tokens is not None and not constraint.matcher().completes_within(max_new_tokens):
            raise BudgetError(budget=max_new_tokens, needed=constraint.min_tokens())
        self._constraint = constraint
        self._given_length = prompt_length
        self._max_new_tokens = max_new_tokens
        self._strict = strict
        self._ended = _row(constraint, [*constraint.vocabulary.eos, pad_token_id])
        self._pool: MaskPool | None = None
        self._held: list[bytes] = []
        self.reset()

    def reset(self) -> None:
        """Forget the prompt and all states, so that the processor can serve another call of ``generate``."""
        self._prompt_length = self._given_length
        self._prompts: set[bytes] = set()
        self._states = PrefixStates(self._constraint, _STATES)
        self.limited: dict[tuple[int, ...], LimitExceeded] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores with what the grammar excludes at negative infinity; ``scores`` is not changed.

        Args:
            input_ids: ``[rows, length]``, prompts padded on the left.
            scores: ``[rows, W]``; ``W`` may exceed the size of the vocabulary.

        Raises:
            GenerationError: a row has left the language, or belongs to another call of ``generate``.
            LimitExceeded: the only row meets a limit, or all beams have met one.
        """
        rows = input_ids.detach().cpu().numpy().astype(np.int64, copy=False)
        length = self._checked_prompt(rows)
        self._states.capacity = max(_STATES, _STATES_PER_ROW * len(rows))
        outputs = np.ascontiguousarray(rows[:, length:])
        states = [self._states.state(row) for row in outputs]
        for index, state in enumerate(states):
            if state.refused_at is not None and not self._is_tolerated(scores[index]):
                raise self._refusal(index, outputs[index], state.refused_at)
        bitmask, which = self._bitmask(states, outputs)
        masked = _masked(scores, self._on_device(bitmask, which, scores))
        if self._constraint.has_temperatures:
            _temper(masked, states)
        self._end_limited(states, scores, masked)
        return masked

    def _end_limited(self, states: Sequence[PrefixState], scores: torch.Tensor, masked: torch.Tensor) -> None:
        """Leave rows that have met a limit nothing but EOS, with a score that loses against every other beam."""
        met = {row: state.limit for row, state in enumerate(states) if state.limit is not None}
        beams = [row for row in met if _are_normalised(scores[row])]
        if met and len(states) in (1, len(beams)):
            raise met[0]
        ends = [token for token in self._constraint.vocabulary.eos if token < masked.shape[1]]
        for row, error in met.items():
            if error.tokens not in self.limited:
                self.limited[error.tokens] = error
                if row not in beams:
                    warnings.warn(f"row {row} ends before it is complete: {error}", CutWarning, stacklevel=3)
            if ends:
                masked[row] = -torch.inf
                masked[row, ends] = max(_LOSES, torch.finfo(masked.dtype).min / 4)

    def _checked_prompt(self, rows: NDArray[np.int64]) -> int:
        if self._prompt_length is None:
            self._prompt_length = rows.shape[1]
        length = self._prompt_length
        prompts = {row[:length].tobytes() for row in rows}
        if not self._prompts:
            self._prompts = prompts
        if rows.shape[1] < length or not prompts <= self._prompts:
            raise GenerationError(
                "logits processor",
                f"the rows do not begin with the {length} prompt tokens of its first call",
                evidence=f"rows of {rows.shape[1]} tokens",
                remedy="make a new ConstraintLogitsProcessor for each call of generate, or call reset()",
            )
        return length

    def _bitmask(
        self, states: Sequence[PrefixState], outputs: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], list[int]]:
        """The masks of this step, and which of them each state has; a matcher that states share fills one mask."""
        distinct = {id(state.matcher): state.matcher for state in states if state.matcher is not None}
        live = list(distinct.values())
        bitmask = np.zeros((len(live) + 1, len(self._ended)), dtype=np.int32)
        bitmask[-1], filled = self._ended, bitmask[:-1]
        budget = None if self._max_new_tokens is None else self._max_new_tokens - outputs.shape[1]
        places = {key: place for place, key in enumerate(distinct)}
        which = [places.get(id(state.matcher), len(live)) for state in states]
        try:
            fill_masks(live, filled, budget=budget if budget is None or budget > 0 else None)
        except LimitExceeded as error:
            for state, place, tokens in zip(states, which, outputs.tolist(), strict=True):
                if place in error.rows:
                    state.end(error, self._constraint, tokens)
        return bitmask, which

    def _on_device(self, bitmask: NDArray[np.int32], which: Sequence[int], scores: torch.Tensor) -> MaskRows:
        """The masks as rows where the scores are, which may be fewer than there are tokens."""
        size = min(self._constraint.vocabulary.size, scores.shape[1])
        if scores.device.type not in _POOLED:
            return MaskRows.of_bitmask(torch.from_numpy(bitmask[which]), size)
        if self._pool is None or (self._pool.size, self._pool.device) != (size, scores.device):
            self._pool = MaskPool(size, rows=_DENSE_ROWS, sparse_rows=_SPARSE_ROWS, device=scores.device)
            self._held = []
        bitmask = bitmask[:, : self._pool.table.words]
        keys = [row.tobytes() for row in bitmask]  # one state_id may stand for several masks
        rows = self._pool.hold_many(keys, bitmask)
        for key in self._held:
            self._pool.release(key)
        self._held = keys
        return self._pool.masks([[rows[place]] for place in which])

    def _is_tolerated(self, scores: torch.Tensor) -> bool:
        return _are_normalised(scores) if self._strict is None else not self._strict

    def _refusal(self, row: int, tokens: NDArray[np.int64], position: int) -> GenerationError:
        vocabulary = self._constraint.vocabulary
        token = int(tokens[position])
        spelled = vocabulary.tokens[token] if 0 <= token < vocabulary.size else b""
        before = vocabulary.decode(tokens[:position].tolist())
        return GenerationError(
            "logits processor",
            f"token {token} ({spelled!r}) at position {position} of the output in row {row} is outside the grammar",
            evidence=f"the output before it ends with {before[-40:]!r}",
            remedy=(
                "let no other processor raise scores after this one; use a new processor for each call of generate; "
                "where drafts are unconstrained or beams are processed further, pass strict=False"
            ),
        )


def _are_normalised(scores: torch.Tensor) -> bool:
    """Whether scores are log-probabilities, as those of beams."""
    return abs(float(torch.logsumexp(scores.float(), dim=-1))) < _NORMALISED


def _masked(scores: torch.Tensor, masks: MaskRows) -> torch.Tensor:
    """The scores with minus infinity in what is not allowed, and in all columns beyond the vocabulary."""
    masked = scores.clone(memory_format=torch.contiguous_format)
    if masked.dtype in FLOATS:
        apply_mask(masked, masks)
    else:  # float64, which kernels do not take
        masked[:, : masks.size].masked_fill_(~masks.allowed(), -torch.inf)
        masked[:, masks.size :].fill_(-torch.inf)
    return masked


def _temper(masked: torch.Tensor, states: Sequence[PrefixState]) -> None:
    """Divide the scores of each row by the temperature of its state; 0 leaves the most probable token."""
    live = [(row, state.matcher) for row, state in enumerate(states) if state.matcher is not None]
    for (row, _), temperature in zip(live, row_temperatures([matcher for _, matcher in live]), strict=True):
        if temperature > 0:
            masked[row] /= temperature
        else:
            best = int(masked[row].argmax())
            score = masked[row, best].clone()
            masked[row] = -torch.inf
            masked[row, best] = score


def _row(constraint: Constraint, ids: Sequence[int | None]) -> NDArray[np.int32]:
    """A mask row that allows ``ids``, or everything where there are none."""
    size = constraint.vocabulary.size
    allowed = [token for token in ids if token is not None and token < size]
    bits = np.zeros(size, dtype=np.bool_)
    bits[allowed or slice(None)] = True
    return pack(bits)
