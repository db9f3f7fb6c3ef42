"""Answers of diffusion models: the conversation before them, and their events.

Each answer is a canvas of its own after the conversation so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.decode.diffusion.posterior import CanvasSampler, Dingo
from structgen.decode.sampling import SMC
from structgen.engine import compile
from structgen.errors import (
    GenerationError,
    GrammarError,
    LimitExceeded,
    ProgramError,
    UnsatisfiableGrammar,
    ValidationFailed,
)
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.nodes import ANY_CHAR, Grammar, Repeat, literal
from structgen.program.backends.field_marginals import canvas_marginals
from structgen.program.conversation import Turns, prompt_of
from structgen.program.json_cursor import NUMBER_BYTES, FieldEnd, path_text
from structgen.program.outcome import Outcome, Violation, field_scores
from structgen.program.stream.event import Event, ObjectFinal, Retracted, Text
from structgen.program.stream.field_tracker import ValueRefused, field_tracker_of, value_of_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from structgen.decode import AnyCanvasSampler, Result
    from structgen.decode.diffusion.commit_policy import Unmasking
    from structgen.grammar.limits import Limits
    from structgen.models.protocol import Prompt
    from structgen.models.protocol.diffusion import Denoiser, DiffusionModel
    from structgen.program.answer import Answer
    from structgen.program.conversation import Role

__all__ = ["CanvasAnswerStream", "CanvasConversation", "canvas_sampler"]

_COMPACT: Final = JsonPolicy(whitespace="compact")
_ANY_TEXT: Final = Repeat(ANY_CHAR, 0, None)


@final
class CanvasConversation:
    """What was said so far to a model that fills canvases: see ``Conversation``.

    A denoiser reads one prompt, so nothing is cached between answers.

    Args:
        model: the diffusion model.
        chat: whether turns are spelled by the model's chat template; else all text is one.
    """

    def __init__(self, model: DiffusionModel, *, chat: bool = True) -> None:
        self.model = model
        self._turns = Turns(chat=chat)
        self._ids: list[int] = []  # of the open turn, as far as it was read
        self._read = 0  # characters of the open turn that they spell

    @property
    def transcript(self) -> str:
        """All that was said."""
        return self._turns.transcript

    def say(self, text: str) -> None:
        """Add text to the open turn."""
        self._turns.say(text)

    def turn(self, role: Role, text: str) -> None:
        """Close the open turn and say something in one of ``role``, which stays open.

        Raises:
            ProgramError: as ``Turns.open``.
        """
        self._turns.open(role, text)
        self._ids, self._read = [], 0

    def prompt_ids(self) -> list[int]:
        """Return the tokens of all that was said; the assistant's turn is open from here on.

        Raises:
            ProgramError: nothing was said.
            ModelError: the chat template refuses the turns.
        """
        turns, model = self._turns, self.model
        before: list[int] = []
        if turns.chat:
            if not turns.is_answer:
                turns.open_answer()
                self._ids, self._read = [], 0
            turns.open_answer()
            before = model.encode_prompt(prompt_of(turns.closed))
        unread = turns.text[self._read :]
        if unread:
            self._ids += model.encode_prompt(unread, chat=False)
            self._read = len(turns.text)
        return [*before, *self._ids]

    def written(self, text: str, tokens: Sequence[int]) -> None:
        """Note what the model has written, and with which tokens."""
        self._turns.say(text)
        self._ids += tokens
        self._read += len(text)

    def read(self) -> None:
        """Nothing: every canvas has a denoiser of its own."""

    def fork(self) -> CanvasConversation:
        """Return an independent conversation with the same turns."""
        copy = CanvasConversation(self.model)
        copy._turns = self._turns.fork()
        copy._ids, copy._read = list(self._ids), self._read
        return copy

    def close(self) -> None:
        """Nothing: no cache is held here."""


@final
class CanvasAnswerStream:
    """Lets a model fill a canvas with an answer; iterate over its events, then ask for the ``outcome``.

    A value that the type's own validators refuse is taken back with all after it, and filled in anew: on a canvas
    whose language has the text before it, and not that value after this text.  So the sampler
    chooses from the remaining completions.  A recursive grammar cannot exclude a text; the whole answer is sampled
    again.

    Args:
        model: the diffusion model.
        prompt_ids: what was said before.
        answer: the requested answer.
        max_tokens: the most tokens of the answer, unless ``unmasking`` says how many slots there are.
        sampler: takes completions.
        unmasking: how the canvas is filled.
        seed: of the random numbers; each further try has a stream of its own.
        tries: how often one field is filled in at most.
        marginals: whether to compute ``FieldScore.marginals``, which takes a forward pass for each field.
        limits: for compiling.

    Raises:
        as ``structgen.decode.diffusion.fill.fill_canvas``, when it is iterated over.
    """

    def __init__(  # noqa: PLR0913  each of them is a keyword that the program's settings have
        self,
        model: DiffusionModel,
        prompt_ids: list[int],
        answer: Answer,
        *,
        max_tokens: int,
        sampler: AnyCanvasSampler,
        unmasking: Unmasking,
        seed: int,
        tries: int,
        marginals: bool,
        limits: Limits | None,
    ) -> None:
        self._prompt_ids = prompt_ids
        self._marginals = marginals
        self._model = _PromptedModel(model, prompt_ids)
        self._answer = answer
        self._max_tokens = max_tokens
        self._sampler = sampler
        self._unmasking = unmasking
        self._seed = seed
        self._tries = tries
        self._limits = limits
        self._whole = compile(_grammar_of(answer), model.vocabulary, limits=limits)
        self._constraint = self._whole
        self._refused: list[Grammar] = []
        self._kept = b""  # the text before the value that was refused last
        self._follower = field_tracker_of(answer)
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

    def __iter__(self) -> Iterator[Event]:
        """The events up to ``ObjectFinal``; those of a canvas come once it is full.

        Raises:
            ValidationFailed: checks refused all values of a field that were tried.
            GenerationError: as ``structgen.generate``.
        """
        while self._outcome is None:
            result = self._filled()
            try:
                yield Text(result.data[len(self._kept) :].decode("utf-8", "replace"))
                value = yield from self._read(result)
            except ValueRefused as refused:
                yield self._retract(refused.end, refused.problem, result.data)
            else:
                whole = FieldEnd((), result.data, 0, len(result.data))
                ends = [whole] if self._follower is None else self._follower.ends
                weighed = self._weighed(result, ends) if self._marginals else None
                scores = field_scores(self._answer, result, ends, value, marginals=weighed)
                self._outcome = Outcome(self._answer, result, value, scores, tuple(self._violations))
                yield ObjectFinal(value)

    def _filled(self) -> Result:
        """Fill a canvas.

        Raises:
            ValidationFailed: what checks have not refused does not fit on a canvas.
        """
        # Imported here, so that programs on other models do not pay for canvases.
        from structgen.decode.diffusion.entry import write_canvas

        unmasking = self._unmasking
        try:
            return write_canvas(
                self._model,
                "",
                self._constraint,
                max_tokens=self._max_tokens if unmasking.canvas is None else None,
                canvas=unmasking.canvas,
                policy=unmasking.policy,
                sampler=self._sampler,
                temperature=unmasking.temperature,
                block=unmasking.block,
                reuse=unmasking.reuse,
                seed=_try_seed(self._seed, len(self._violations)),
                stream=unmasking.stream,
            )
        except (GrammarError, GenerationError, LimitExceeded) as error:
            if not self._violations:
                raise
            raise self._failure() from error

    def _read(self, result: Result) -> Generator[Event, None, Any]:
        """Tell the fields; the value is that of the answer.

        Raises:
            Refused: a check refuses a value.
        """
        if self._follower is None:
            return value_of_text(self._answer, result.text)
        matcher = self._constraint.matcher()
        for token in result.tokens:
            matcher.accept(token)
        yield from self._follower.read(result.data[len(self._kept) :], matcher)
        yield from self._follower.finish()
        return self._follower.value

    def _weighed(self, result: Result, ends: Sequence[FieldEnd]) -> list[Mapping[Any, float] | None]:
        """See ``FieldScore.marginals``; what checks have refused counts as well."""
        return canvas_marginals(
            self._model,
            self._prompt_ids,
            self._answer,
            self._whole,
            result,
            ends,
            temperature=self._unmasking.temperature,
            tail=self._sampler.tail if isinstance(self._sampler, CanvasSampler) else "scored",
        )

    def _retract(self, end: FieldEnd, problem: str, data: bytes) -> Retracted:
        """Take back a value and what follows it, and leave it out of the language.

        Raises:
            ValidationFailed: it was the last try, or nothing is left.
            GenerationError: it cannot be left out, and would be written again.
        """
        text = end.data.decode("utf-8", "replace")
        self._violations.append(Violation(end.path, text, problem))
        if sum(each.path == end.path for each in self._violations) >= self._tries:
            raise self._failure()
        self._kept = data[: end.start]
        self._refused.append(_refused_prefix(data, end))
        grammar = self._whole.grammar & (literal(self._kept.decode()) + _ANY_TEXT)
        for each in self._refused:
            grammar = grammar & ~each
        try:
            self._constraint = compile(grammar, self._model.vocabulary, limits=self._limits)
        except UnsatisfiableGrammar as error:
            raise self._failure() from error
        except GrammarError as error:
            if isinstance(self._sampler, CanvasSampler) and self._sampler.deterministic:
                raise GenerationError(
                    f"field {path_text(end.path)!r}" if end.path else "the answer",
                    f"its checks refuse {text[:80]!r}, which cannot be left out of a grammar that recurs",
                    evidence=problem,
                    remedy="take sampler=Posterior(), which samples the answer again",
                ) from error
            self._kept, self._constraint = b"", self._whole
        if self._follower is not None:
            self._follower.restart(self._kept)
        so_far = () if self._follower is None else self._follower.so_far
        return Retracted(len(self._kept.decode()), end.path, problem, *so_far)

    def _failure(self) -> ValidationFailed:
        path = self._violations[-1].path
        refused = [(each.text, each.problem) for each in self._violations if each.path == path]
        return ValidationFailed(path_text(path), refused)


def canvas_sampler(sampler: object, model: DiffusionModel, subject: str) -> AnyCanvasSampler:
    """Return the sampler of a program's answer: ``Dingo()`` where nothing is said.

    Raises:
        ProgramError: it chooses tokens one by one.
    """
    if sampler is None:
        return Dingo()
    if isinstance(sampler, (CanvasSampler, SMC)):
        return sampler
    raise ProgramError(
        subject,
        f"{type(sampler).__name__} is a sampler of models that write token by token",
        evidence=f"model {model.name!r} fills canvases",
        remedy="leave it out, or take sampler=Dingo(), Posterior() or SMC()",
    )


@final
class _PromptedModel:
    """A diffusion model with a conversation before it, which is every prompt."""

    def __init__(self, model: DiffusionModel, prompt_ids: list[int]) -> None:
        self.name = model.name
        self.vocabulary = model.vocabulary
        self.mask_token = model.mask_token
        self.max_context = model.max_context
        self._model = model
        self._prompt_ids = prompt_ids

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``DiffusionModel.encode_prompt``."""
        return list(self._prompt_ids)

    def start(self, prompt_ids: Sequence[int], /) -> Denoiser:
        """See ``DiffusionModel.start``."""
        return self._model.start(prompt_ids)


def _grammar_of(answer: Answer) -> Grammar:
    """The grammar that an answer is filled in by; JSON without white space between values.

    Where tokens are written one by one, forced white space costs nothing.  On a canvas it takes slots; each
    runs in each pass, and white space that the model may choose multiplies the states of the automaton: 2,470 states
    become 7,630 for a record of five fields, and every posterior is computed over them.
    """
    if answer.schema is None:
        return answer.grammar
    return json_schema(answer.schema, policy=_COMPACT, formats=answer.formats)


def _refused_prefix(data: bytes, end: FieldEnd) -> Grammar:
    """All texts that begin as ``data`` up to the end of a refused value: a check would refuse them as well."""
    if end.end == len(data):
        return literal(data.decode())
    # A number may go on with further digits; what follows it tells that it is over.
    stop = end.end + (data[end.end - 1] in NUMBER_BYTES)
    return literal(data[:stop].decode()) + _ANY_TEXT


def _try_seed(seed: int, index: int) -> int:
    """The seed of a try; the program's own for the first."""
    return seed if index == 0 else int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
