"""The answers of models that write token by token, fill canvases, or are on a server; and what all answers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final, get_args

import numpy as np

from structgen.decode.diffusion.commit_policy import Unmasking
from structgen.errors import GenerationError, ValidationFailed
from structgen.frontends.json_schema import json_schema
from structgen.log import logger
from structgen.program.json_cursor import FieldEnd, path_text
from structgen.program.outcome import Outcome, Violation
from structgen.program.stream.field_tracker import field_tracker_of
from structgen.program.stream.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.decode import AnyCanvasSampler, AnyDrafter, AnyPotential, AnySampler, Result
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.program.answer import Answer
    from structgen.program.prompt import Style
    from structgen.program.stream.event import Event, Partial

__all__ = ["AnswerStream", "LocalAnswerStream", "ProgramSettings", "compact_grammar", "log_refusal", "seed_of_stream"]


OnCut: TypeAlias = Literal["raise", "mark", "continue"]
"""The reaction if the budget decides a part of an answer."""

_UNMASKING: Final = Unmasking()
_GUARD: Final = Guard()


@final
@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The settings of all answers of a program, unless one overrides them: see ``structgen.program``.

    ``sampler`` is None for the default of the model's kind, ``Greedy()`` or ``Dingo()``; models that fill no canvases
    have no ``unmasking``.
    """

    max_tokens: int = 256
    sampler: AnySampler | AnyCanvasSampler | None = None
    potentials: Sequence[AnyPotential] = ()
    seed: int = 0
    drafter: AnyDrafter = "auto"
    chat: bool = True
    tries: int = 8
    describe: Style | bool = True
    alternatives: int = 0
    marginals: bool = False
    limits: Limits | None = None
    unmasking: Unmasking = _UNMASKING
    think: int = 0
    on_cut: OnCut = "mark"
    guard: Guard | None = _GUARD
    canonical: bool = False

    def __post_init__(self) -> None:
        if self.on_cut not in get_args(OnCut):
            raise ValueError(f"on_cut is one of {', '.join(get_args(OnCut))}; found {self.on_cut!r:.40}")


class AnswerStream(ABC):
    """An answer that a model writes: iterate over its events, then ask for the ``outcome``.

    Args:
        answer: the requested answer.
        settings: those of the program, with what holds for this answer alone in their place.
    """

    def __init__(self, answer: Answer, settings: ProgramSettings) -> None:
        self._answer = answer
        self._settings = settings
        self._violations: list[Violation] = []
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """The finished answer.

        Raises:
            GenerationError: it is not finished.
        """
        if self._outcome is None:
            raise GenerationError("answer", "it is not finished", remedy="iterate over the events first")
        return self._outcome

    @abstractmethod
    def __iter__(self) -> Iterator[Event]:
        """Yield the events of the answer while it is written."""


class LocalAnswerStream(AnswerStream):
    """An answer whose refused fields are each sampled again, up to ``settings.tries`` times."""

    def __init__(self, answer: Answer, settings: ProgramSettings) -> None:
        super().__init__(answer, settings)
        self._tracker = field_tracker_of(answer)

    @property
    def _so_far(self) -> tuple[Partial, int] | tuple[()]:
        return () if self._tracker is None else self._tracker.so_far

    def _ends(self, result: Result) -> Sequence[FieldEnd]:
        """The positions of the fields; of a text the whole."""
        return [FieldEnd((), result.data, 0, len(result.data))] if self._tracker is None else self._tracker.ends

    def _refuse(self, end: FieldEnd, problem: str) -> None:
        """Note that a check refuses a value.

        Raises:
            ValidationFailed: it was the last try.
        """
        self._violations.append(Violation(end.path, end.data.decode("utf-8", "replace"), problem))
        log_refusal(self._violations)
        if sum(each.path == end.path for each in self._violations) >= self._settings.tries:
            raise self._failure()

    def _failure(self) -> ValidationFailed:
        """The field that was refused last cannot be written."""
        path = self._violations[-1].path
        refused = [(each.text, each.problem) for each in self._violations if each.path == path]
        return ValidationFailed(path_text(path), refused)


def log_refusal(violations: Sequence[Violation]) -> None:
    """Log the last value that a check refused, but not its text."""
    last = violations[-1]
    logger.info("field %r is written again, refusal %d: %s", path_text(last.path), len(violations), last.problem)


def compact_grammar(answer: Answer) -> Grammar:
    """Return the grammar of an answer; JSON has no white space between values."""
    if answer.schema is None:
        return answer.grammar
    policy = replace(answer.policy, whitespace="compact")
    return json_schema(answer.schema, policy=policy, formats=answer.formats)


def seed_of_stream(seed: int, index: int) -> int:
    """Return the seed of the ``index``-th answer or try; ``seed`` itself for the first."""
    return seed if index == 0 else int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
