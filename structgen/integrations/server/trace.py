"""How an answer came about, token by token: the field ``structgen.trace`` of the choices of a stream."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from structgen.engine.mask import allowed_ids, empty_masks

if TYPE_CHECKING:
    from structgen.decode import Chunk, Generation
    from structgen.decode.step.result import Step
    from structgen.engine import Constraint

__all__ = ["Trace", "Tracer"]


@final
@dataclass(frozen=True, slots=True)
class Trace:
    """The tokens of the chunk that comes next.

    Attributes:
        start: how many tokens of the answer come before them.
        tokens: of each its text, id, kind (forced, drafted, chosen), probability and the size of its mask.
    """

    start: int
    tokens: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {"start": self.start, "tokens": list(self.tokens)}


@final
class Tracer:
    """Follows a generation.  A matcher of its own counts the tokens that were allowed, so each mask is made twice."""

    def __init__(self, constraint: Constraint, max_tokens: int) -> None:
        self._vocabulary = constraint.vocabulary
        self._max_tokens = max_tokens
        self._matcher = constraint.matcher()
        self._mask = empty_masks(self._vocabulary.size)
        self._taken = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def trace(self, chunk: Chunk, generation: Generation) -> Trace:
        """The tokens of a chunk of the generation."""
        if chunk.start < self._taken:
            self._matcher.rollback(self._taken - chunk.start)
            self._taken = chunk.start
            self._decoder.reset()
        steps = generation.steps[chunk.start : chunk.start + len(chunk.tokens)]
        return Trace(chunk.start, tuple(self._token(step) for step in steps if step.token is not None))

    def _token(self, step: Step) -> dict[str, Any]:
        token: int = step.token  # type: ignore[assignment]  # no end
        special = self._vocabulary.special
        allowed = 1
        if not step.forced:
            self._matcher.fill_mask(self._mask, budget=self._max_tokens - self._taken)
            allowed = len(allowed_ids(self._mask[0], self._vocabulary.size))
        self._matcher.accept(token)
        self._taken += 1
        return {
            "id": token,
            "text": "" if token in special else self._decoder.decode(self._vocabulary.tokens[token]),
            "special": special.get(token),
            "kind": "forced" if step.forced else "drafted" if step.drafted else "chosen",
            "logprob": step.logprob,
            "allowed": allowed,
            "others": [[self._shown(other), logprob] for other, logprob in step.alternatives],
        }

    def _shown(self, token: int) -> str:
        special = self._vocabulary.special.get(token)
        if special is not None:
            return special
        return "(end)" if token in self._vocabulary.eos else self._vocabulary.tokens[token].decode("utf-8", "replace")
