"""A constraint in ``llama_cpp.Llama``: a logits processor that cannot fail open, and drafts of what the grammar forces.

>>> processor = ConstraintLogitsProcessor(constraint, max_tokens=200)                           # doctest: +SKIP
>>> llama.create_completion(prompt, **processor.arguments)                                      # doctest: +SKIP
>>> llama.draft_model = processor.draft_model()        # of a Llama(..., logits_all=True)        # doctest: +SKIP

The package is not imported.  Its loop calls Python for each token; :mod:`structgen.integrations.llama_cpp` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.engine.mask import contains, empty_masks
from structgen.errors import GenerationError, LimitExceeded
from structgen.integrations.llama_cpp import check_constraint, refusal
from structgen.log import logger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Constraint, Matcher

__all__ = ["ConstraintDraftModel", "ConstraintLogitsProcessor"]

_SUBJECT: Final = "logits processor"
_NEW: Final = "make a new ConstraintLogitsProcessor for each generation, or call reset()"


class _Processors(list[Any]):
    """What ``Llama`` takes for a ``LogitsProcessorList``.

    ``Llama`` adds its ``logit_bias`` by ``processors = processors.extend([bias])``.  A list returns None, which would
    be no processors at all.
    """

    def extend(self, more: Iterable[Any]) -> _Processors:  # type: ignore[override]
        return _Processors([*self, *more])


@final
class ConstraintLogitsProcessor:
    """Sets the logits of tokens after which the output cannot become a string of the grammar to minus infinity.

    Pass ``**processor.arguments`` to ``Llama.create_completion``.  They hold the processor, its ``stops`` and, if it
    has one, ``max_tokens``.  ``create_chat_completion`` takes no ``stopping_criteria``: pass it
    ``logits_processor=processor.arguments["logits_processor"]``, and call ``check()`` afterwards.

    *It cannot fail open.*  ``Llama`` calls processors from C, where an exception is printed and forgotten, and the
    token is then chosen without a mask.  So every exception, Ctrl-C included, is kept, EOS is the only token left, and
    ``stops``, which ``Llama`` calls from Python after each token, raises the exception there.  It also raises if a
    token was chosen without the processor.  ``check`` does the same for loops that know no ``stopping_criteria``.

    The state follows ``input_ids``: their length at the first call is that of the prompt, and each call is for one
    token.  Where drafts are run, the ids hold draft tokens beyond the token that is sampled, and the processor is
    called once for each position up to the first draft token that is rejected.  Ids that go back to an earlier
    position of the output go on from there, and ids with another prompt begin another output.  Anything else is an
    error: ids with more tokens than were sampled or drafted, a token that was not allowed.

    Args:
        constraint: compiled for the vocabulary of the model's file: ``Vocabulary.load("model.gguf")``.
        max_tokens: complete every output within this many tokens, EOS not counted.

    Raises:
        BudgetError: the shortest string takes more than ``max_tokens``.
        VocabularyError: the vocabulary has no token that ends an output.
        ArgumentError: it is no constraint.
    """

    def __init__(self, constraint: Constraint, *, max_tokens: int | None = None) -> None:
        check_constraint(constraint, "ConstraintLogitsProcessor", max_tokens)
        self._constraint = constraint
        self._max_tokens = max_tokens
        self._words = empty_masks(constraint.vocabulary)
        self.reset()

    def reset(self) -> None:
        """Forget the output and its error, so that the processor can serve another generation."""
        self._matcher = self._constraint.matcher()
        self._seen: NDArray[np.int64] | None = None  # the prompt, and the tokens of the output that are known
        self._prompt_length = 0
        self._drafted: tuple[int, list[int]] = 0, []  # where the last draft tokens stand, and they
        self._masked, self._heard = 0, 0  # tokens that were masked since `stops` was asked, and the ids that it saw
        self._is_inside = False  # a call has begun and not ended: should Ctrl-C end it, no mask was written
        self._error: BaseException | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What to pass to ``Llama``; its ``max_tokens`` counts EOS too."""
        arguments: dict[str, Any] = {"logits_processor": _Processors([self]), "stopping_criteria": self.stops}
        if self._max_tokens is not None:
            arguments["max_tokens"] = self._max_tokens + 1
        return arguments

    @property
    def tokens(self) -> list[int]:
        """The tokens of the output as far as they are known: without the one that was sampled last."""
        known = [] if self._seen is None else self._seen[self._prompt_length :].tolist()
        return [token for token in known if token not in self._constraint.vocabulary.eos]

    def draft_model(self, other: Callable[..., Any] | None = None) -> ConstraintDraftModel:
        """Return a draft model for ``Llama`` that drafts what this processor's grammar forces.

        Args:
            other: a ``LlamaDraftModel`` that drafts where nothing is forced.
        """
        return ConstraintDraftModel(self, other)

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores with what is not allowed at minus infinity; ``scores`` is not changed.

        Args:
            input_ids: ``[length]``, the prompt and what was run after it.
            scores: ``[W]``; ``W`` may exceed the size of the vocabulary.
        """
        try:
            if self._error is None and not self._is_inside:
                self._is_inside = True
                masked = self._mask(np.asarray(input_ids, dtype=np.int64), np.asarray(scores, dtype=np.float32))
                self._masked += 1
                self._is_inside = False
                return masked
        except BaseException as error:
            self._error = error
            if isinstance(error, LimitExceeded):
                error.ended(self._constraint.vocabulary.decode(self.tokens), self.tokens)
            logger.error("the output ends early: %s", error)
        ended = np.full(len(scores), -np.inf, dtype=np.float32)
        ended[self._constraint.vocabulary.eos[0]] = 0
        return ended

    def stops(self, input_ids: NDArray[np.intc], logits: NDArray[np.float32]) -> bool:
        """The criterion for ``stopping_criteria``: never stops the output, but raises what went wrong.

        Args:
            input_ids: ``[length]``, the prompt and the output before the token that was sampled last.
            logits: ``[W]``; not used.

        Raises:
            GenerationError: the output has left the grammar, or the last token was sampled without the processor.
            LimitExceeded: a bound of the constraint's limits was reached.
        """
        self.check()
        ids = np.asarray(input_ids, dtype=np.int64)
        # Llama asks once more when it is done, with all ids that it has run.
        is_done = self._masked == 0 and len(ids) >= self._heard and self._are_drafted(ids, self._heard)
        if self._masked != 1 and not is_done:
            problem = (
                "a token was sampled without it" if self._masked == 0 else "it was called several times for a token"
            )
            self._error = GenerationError(
                _SUBJECT,
                problem,
                evidence=f"{self._masked} calls since the last token",
                remedy="pass logits_processor and stopping_criteria together: **processor.arguments",
            )
            raise self._error
        if self._masked == 1:
            self._masked, self._heard = 0, len(ids)
        return False

    def check(self) -> None:
        """Raise the exception that ended the output, if there is one; ``reset`` forgets it.

        Raises:
            GenerationError: the output has left the grammar, the ids fit no output, or nothing was masked.
            LimitExceeded: a bound of the constraint's limits was reached.
        """
        if self._error is None and (self._is_inside or self._seen is None):
            self._error = GenerationError(
                _SUBJECT,
                "it was interrupted" if self._is_inside else "it was not called",
                evidence=f"{len(self.tokens)} tokens of the output are known",
                remedy="discard the output; pass **processor.arguments, and generate again after reset()",
            )
        if self._error is not None:
            raise self._error

    def _mask(self, ids: NDArray[np.int64], scores: NDArray[np.float32]) -> NDArray[np.float32]:
        self._follow(ids)
        budget = None if self._max_tokens is None else max(self._max_tokens - self._matcher.history_length, 0)
        size = min(len(scores), self._constraint.vocabulary.size)
        if self._matcher.is_terminated:
            allowed = np.zeros(size, dtype=np.bool_)
            allowed[list(self._constraint.vocabulary.eos)] = True
        else:
            self._matcher.fill_mask(self._words, budget=budget)
            bits = np.unpackbits(self._words[0].view(np.uint8), count=size, bitorder="little")
            allowed = bits.view(np.bool_)
        masked = np.full(len(scores), -np.inf, dtype=np.float32)
        np.copyto(masked[:size], scores[:size], where=allowed)
        if not (masked > -np.inf).any():
            raise GenerationError(
                _SUBJECT,
                "the scores of all tokens that may come next are minus infinity, or are no numbers",
                evidence=f"{int(allowed.sum())} tokens may come after {len(self.tokens)} tokens of the output",
                remedy="put it before processors that exclude tokens, and check the logits of the model",
            )
        return masked

    def _follow(self, ids: NDArray[np.int64]) -> None:
        """Move the state to the position that is sampled now."""
        if self._seen is None:
            self._begin(ids)
            return
        known, length = len(self._seen), self._prompt_length
        if len(ids) < length or not np.array_equal(ids[:length], self._seen[:length]):
            self._begin(ids)
        elif len(ids) <= known and np.array_equal(ids, self._seen[: len(ids)]):
            self._matcher.rollback(max(self._matcher.history_length - (len(ids) - length), 0))
            self._seen = ids.copy()
        elif len(ids) > known and np.array_equal(ids[:known], self._seen):
            self._take(ids, known)
        else:
            raise GenerationError(
                _SUBJECT,
                "the ids hold another output than was sampled",
                evidence=f"{len(ids) - length} ids after a prompt of {length}",
                remedy=_NEW,
            )

    def _take(self, ids: NDArray[np.int64], known: int) -> None:
        """Take the token that was sampled last; those after it are draft tokens."""
        token, beyond = int(ids[known]), ids[known + 1 :]
        if not self._are_drafted(ids, known + 1):
            if self._matcher.is_terminated or token in self._constraint.vocabulary.eos:
                self._begin(ids)  # the output had ended, and is part of another prompt
                return
            raise GenerationError(
                _SUBJECT,
                f"the ids hold {len(beyond)} tokens more than were sampled",
                evidence=f"{len(ids) - self._prompt_length} ids after a prompt of {self._prompt_length}",
                remedy=f"take drafts from processor.draft_model(other); {_NEW}",
            )
        if not self._matcher.is_terminated:
            if not contains(self._words[0], token) or not self._matcher.accept(token):
                raise self._refusal(token)
        elif token not in self._constraint.vocabulary.eos:
            raise self._refusal(token)
        self._seen = ids[: known + 1].copy()

    def _are_drafted(self, ids: NDArray[np.int64], begin: int) -> bool:
        """Whether the ids from ``begin`` on, if any, are those that were drafted there."""
        beyond = ids[begin:]
        first, tokens = self._drafted
        at = begin - first
        return len(beyond) == 0 or (at >= 0 and np.array_equal(beyond, tokens[at : at + len(beyond)]))

    def _refusal(self, token: int) -> GenerationError:
        remedy = f"let no processor after this one raise scores; {_NEW}"
        return refusal(_SUBJECT, self._constraint, self.tokens, token, remedy)

    def _begin(self, ids: NDArray[np.int64]) -> None:
        self._matcher.reset()
        self._seen = ids.copy()
        self._prompt_length = len(ids)
        self._drafted = 0, []
        self._masked = self._heard = 0

    def _ahead(self, ids: NDArray[np.int64]) -> Matcher | None:
        """A matcher after the ids, whose last one was sampled now; None if they are not those of the output."""
        if self._seen is None or self._error is not None or len(ids) != len(self._seen) + 1:
            return None
        if not np.array_equal(ids[:-1], self._seen):
            return None
        matcher = self._matcher.fork()
        return matcher if matcher.accept(int(ids[-1])) else None

    def _note_draft(self, begin: int, tokens: list[int]) -> None:
        self._drafted = begin, tokens


@final
class ConstraintDraftModel:
    """Drafts the tokens that a grammar forces: a ``LlamaDraftModel`` for ``Llama(draft_model=...)``.

    ``Llama`` runs draft tokens with the sampled one in a pass, and keeps them as long as it samples the same; the
    processor masks each position.  So drafts change no greedy output beyond what other sums of a pass change.
    ``Llama`` needs ``logits_all=True`` where the draft model is set after it was made.

    Args:
        processor: whose output is drafted; it may be replaced for another generation.  None drafts nothing.
        other: a ``LlamaDraftModel`` that drafts where nothing is forced, such as ``LlamaPromptLookupDecoding``; of its
            draft only the part that the grammar allows is kept.
    """

    def __init__(self, processor: ConstraintLogitsProcessor | None, other: Callable[..., Any] | None = None) -> None:
        self.processor = processor
        self._other = other

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """Return draft tokens.

        Args:
            input_ids: ``[length]``, the prompt and the output.
            kwargs: passed on to the other draft model.
        """
        drafted: list[int] = []
        matcher = None if self.processor is None else self.processor._ahead(np.asarray(input_ids, dtype=np.int64))
        if matcher is not None and self.processor is not None:
            drafted = matcher.forced_tokens()
            if not drafted and self._other is not None and not matcher.is_terminated:
                proposed = [int(token) for token in self._other(input_ids, **kwargs)]
                drafted = proposed[: matcher.validate(proposed)]
            self.processor._note_draft(len(input_ids), drafted)
        return np.array(drafted, dtype=np.intc)
