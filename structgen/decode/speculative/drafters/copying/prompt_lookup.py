"""Copies what followed the same words in the prompt, and in the output itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.calibration import Calibration
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.speculative.drafters.copying.continuations import Continuation, guesses_of
from structgen.decode.speculative.drafters.copying.output_fields import OutputFields
from structgen.decode.speculative.drafters.copying.realignment import Realignment
from structgen.decode.speculative.drafters.copying.suffix_index import LONGEST, SuffixIndex
from structgen.decode.speculative.drafters.copying.value_copying import ValueCopier
from structgen.decode.speculative.drafters.guessing.following import FollowingDrafting
from structgen.decode.speculative.drafters.guessing.guess_tree import Guess

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["PromptLookup"]


@final
@dataclass(frozen=True, slots=True)
class PromptLookup(Drafter):
    """Copies from the prompt and from what stands of the output.

    Two ways together.  As tokens: the end of the output is looked for in all that stands before it, and what followed
    there is guessed, of several places as a tree; where a copy goes wrong, it is taken up again around the place where
    it was lost.  As text: what stands of the value that is being written is looked for in the prompt, see
    ``ValueCopier``.

    Source: A. Saxena, "Prompt Lookup Decoding" (2023); T. Ge et al., "Lossless Acceleration for Seq2seq Generation with
    Aggressive Decoding" (2022, arXiv 2205.10350); N. Yang et al., "Inference with Reference" (2023, arXiv 2304.04487).

    Attributes:
        places: how many earlier occurrences of the last tokens are followed at a time.
        shortest: how many tokens must agree at least.
        values: whether values are matched as text as well.
        calibration: of the confidences; outputs that share the value share what was learned.

    Raises:
        ValueError: a number is out of range.
    """

    places: int = 6
    shortest: int = 1
    values: bool = True
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"PromptLookup: places must be at least 1; found {self.places!r}")
        if not 1 <= self.shortest <= LONGEST:
            raise ValueError(f"PromptLookup: shortest must lie between 1 and {LONGEST}; found {self.shortest!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "prompt lookup"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _Lookup(self, context, task)


@final
class _Lookup(FollowingDrafting):
    def __init__(self, settings: PromptLookup, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._settings = settings
        self._index = SuffixIndex()
        self._realignment = Realignment(self._index)
        self._tokens = task.constraint.vocabulary.tokens
        self._fields = OutputFields()
        prompt = context.tokens[: task.prompt_tokens]
        # Special tokens, which have no bytes, set texts apart.
        data = b"".join([self._spelled(token) or b"\n" for token in prompt]) if settings.values else b""
        self._copier = ValueCopier(task.constraint.vocabulary, data)

    def appended(self, tokens: Sequence[int]) -> None:
        """See ``FollowingDrafting.appended``."""
        self._realignment.follow(tokens)
        before = len(self._index)
        self._index.extend(tokens)
        for token in tokens[max(self._task.prompt_tokens - before, 0) :]:
            self._fields.feed(self._tokens[token])

    def _spelled(self, token: int) -> bytes:
        """Its bytes; a prompt may have tokens that no output has, beyond the vocabulary."""
        return self._tokens[token] if token < len(self._tokens) else b""

    def truncated(self, length: int) -> None:
        """See ``FollowingDrafting.truncated``."""
        self._index.truncate(length)
        self._realignment.forget()
        self._fields = OutputFields()
        self._fields.feed(b"".join([self._tokens[token] for token in self.output]))

    def guesses(self, state: DraftState) -> Iterator[Guess]:
        """See ``FollowingDrafting.guesses``."""
        suffix = self.tokens[-LONGEST:]
        matches = [
            match
            for match in self._index.find(suffix, self._settings.places)
            if match.length >= self._settings.shortest
        ]
        yield from guesses_of(
            [Continuation(self._index.following(each.position, LONGEST), each.length) for each in matches], "lookup"
        )
        yield from self._realignment.guesses(matches, "lookup again")
        if self._settings.values:
            yield from self._copier.guesses(self._fields, state.matcher)
