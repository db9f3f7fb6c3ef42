"""Answers of diffusion models: the conversation before them, and their events.

Each answer is a canvas of its own after the conversation so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, final

from structgen.decode.diffusion.posterior import CanvasSampler, Dingo
from structgen.decode.sampling import SMC
from structgen.engine import compile
from structgen.errors import GenerationError, GrammarError, LimitExceeded, ProgramError, UnsatisfiableGrammar
from structgen.grammar.nodes import ANY_CHAR, Grammar, Repeat, literal
from structgen.program.backends import LocalAnswerStream, ProgramSettings, compact_grammar, seed_of_stream
from structgen.program.backends.field_marginals import canvas_marginals
from structgen.program.conversation import BaseConversation, prompt_of, with_hint
from structgen.program.json_cursor import NUMBER_BYTES, FieldEnd, path_text
from structgen.program.outcome import Outcome, field_scores
from structgen.program.stream.event import Event, ObjectFinal, Retracted, Text
from structgen.program.stream.field_tracker import ValueRefused, value_of_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from structgen.decode import AnyCanvasSampler, Result
    from structgen.models.protocol import Prompt
    from structgen.models.protocol.diffusion import Denoiser, DiffusionModel
    from structgen.program.answer import Answer
    from structgen.program.conversation import Role

__all__ = ["CanvasAnswerStream", "CanvasConversation", "canvas_sampler"]

_ANY_TEXT: Final = Repeat(ANY_CHAR, 0, None)


@final
class CanvasConversation(BaseConversation):
    """The turns of a conversation with a diffusion model; a denoiser reads one prompt, so nothing is cached."""

    def __init__(self, model: DiffusionModel, *, chat: bool = True) -> None:
        super().__init__(chat=chat)
        self.model = model
        self._ids: list[int] = []  # of the open turn, as far as it was read
        self._read = 0  # characters of the open turn that they spell
        self._hint = ""  # at the end of the turn before it

    def turn(self, role: Role, text: str) -> None:
        """See ``BaseConversation.turn``."""
        super().turn(role, text)
        self._ids, self._read = [], 0

    def prompt_ids(self, hint: str = "") -> list[int]:
        """Return the tokens of the conversation; the assistant's turn is open from here on.

        ``hint`` is added to the user's turn before it, until the next turn is opened.

        Raises:
            ProgramError: the conversation is empty.
            ModelError: the chat template refuses the turns.
        """
        turns, model = self._turns, self.model
        before: list[int] = []
        if turns.chat:
            if not turns.is_answer:
                turns.open_answer()
                self._ids, self._read, self._hint = [], 0, hint
            turns.open_answer()
            before = model.encode_prompt(prompt_of(with_hint(turns.closed, self._hint)))
        unread = turns.text[self._read :]
        if unread:
            self._ids += model.encode_prompt(unread, chat=False)
            self._read = len(turns.text)
        return [*before, *self._ids]

    def thought(self, tokens: Sequence[int]) -> None:
        """Note the tokens of a thought, tags included; they are no part of the conversation."""
        self._ids += tokens

    def written(self, text: str, tokens: Sequence[int] = ()) -> None:
        """See ``BaseConversation.written``."""
        super().written(text, tokens)
        self._ids += tokens
        self._read += len(text)

    def fork(self) -> Self:
        """See ``BaseConversation.fork``."""
        made = super().fork()
        made._ids = list(self._ids)
        return made


@final
class CanvasAnswerStream(LocalAnswerStream):
    """Lets a model fill a canvas with an answer: see ``AnswerStream``.

    If the type's own validators refuse a value, the value and the text after it are removed. The canvas is filled again
    under a language that requires the text before the value and excludes the value there. So the sampler chooses from
    the remaining completions. A recursive grammar cannot exclude a text; then the whole answer is sampled again.

    Args:
        model: the diffusion model.
        prompt_ids: the tokens of the conversation before the answer.
        answer, settings: see ``AnswerStream``; ``max_tokens`` holds unless ``unmasking`` says how many
            slots there are, and each further try has a stream of random numbers of its own.
        sampler: takes completions.

    Raises:
        as ``structgen.decode.diffusion.fill.fill_canvas``, when it is iterated over.
    """

    def __init__(
        self,
        model: DiffusionModel,
        prompt_ids: list[int],
        answer: Answer,
        settings: ProgramSettings,
        *,
        sampler: AnyCanvasSampler,
    ) -> None:
        super().__init__(answer, settings)
        self._model = _PromptedModel(model, prompt_ids)
        self._sampler = sampler
        # Where tokens are written one by one, forced white space costs nothing.  On a canvas it takes slots; each runs
        # in each pass, and white space that the model may choose multiplies the states of the automaton: 2,470 states
        # become 7,630 for a record of five fields, and every posterior is computed over them.
        self._whole = compile(compact_grammar(answer), model.vocabulary, limits=settings.limits)
        self._constraint = self._whole
        self._refused: list[Grammar] = []
        self._kept = b""  # the text before the value that was refused last

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
                ends = self._ends(result)
                weighed = self._weighed(result, ends) if self._settings.marginals else None
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

        settings, unmasking = self._settings, self._settings.unmasking
        try:
            return write_canvas(
                self._model,
                "",
                self._constraint,
                unmasking,
                max_tokens=settings.max_tokens if unmasking.canvas is None else None,
                sampler=self._sampler,
                seed=seed_of_stream(settings.seed, len(self._violations)),
            )
        except (GrammarError, GenerationError, LimitExceeded) as error:
            if not self._violations:
                raise
            raise self._failure() from error

    def _read(self, result: Result) -> Generator[Event, None, Any]:
        """Report the fields and return the value of the answer.

        Raises:
            Refused: a check refuses a value.
        """
        if self._tracker is None:
            return value_of_text(self._answer, result.text)
        matcher = self._constraint.matcher()
        for token in result.tokens:
            matcher.accept(token)
        self._tracker.cut = result.cut_byte
        yield from self._tracker.read(result.data[len(self._kept) :], matcher)
        yield from self._tracker.finish()
        return self._tracker.value

    def _weighed(self, result: Result, ends: Sequence[FieldEnd]) -> list[Mapping[Any, float] | None]:
        """See ``FieldScore.marginals``; what checks have refused counts as well."""
        return canvas_marginals(
            self._model,
            self._answer,
            self._whole,
            result,
            ends,
            temperature=self._settings.unmasking.temperature,
            tail=self._sampler.tail if isinstance(self._sampler, CanvasSampler) else "scored",
        )

    def _retract(self, end: FieldEnd, problem: str, data: bytes) -> Retracted:
        """Take back a value and what follows it, and leave it out of the language.

        Raises:
            ValidationFailed: it was the last try, or nothing is left.
            GenerationError: it cannot be left out, and would be written again.
        """
        text = end.data.decode("utf-8", "replace")
        self._refuse(end, problem)
        self._kept = data[: end.start]
        self._refused.append(_refused_prefix(data, end))
        grammar = self._whole.grammar & (literal(self._kept.decode()) + _ANY_TEXT)
        for each in self._refused:
            grammar = grammar & ~each
        try:
            self._constraint = compile(grammar, self._model.vocabulary, limits=self._settings.limits)
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
        if self._tracker is not None:
            self._tracker.restart(self._kept)
        return Retracted(len(self._kept.decode()), end.path, problem, *self._so_far)


def canvas_sampler(sampler: object, model: DiffusionModel, subject: str) -> AnyCanvasSampler:
    """Return the sampler of a program's answer, by default ``Dingo()``.

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


def _refused_prefix(data: bytes, end: FieldEnd) -> Grammar:
    """All texts that begin as ``data`` up to the end of a refused value: a check would refuse them as well."""
    if end.end == len(data):
        return literal(data.decode())
    # A number may have further digits; only the text after it shows that it is complete.
    stop = end.end + (data[end.end - 1] in NUMBER_BYTES)
    return literal(data[:stop].decode()) + _ANY_TEXT
