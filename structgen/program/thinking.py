"""Thoughts before answers: ``program(think=200)``.

A thought is an answer of its own, in free text, which the model reads before it writes the typed answer.  Where the
vocabulary has the tags of a family of models, the thought has that family's form (``structgen.frontends.chat``); else
the tags are text, and a sentence in the prompt asks for the thought.  A thought is no part of the transcript: as in the
chat templates of models that reason, the turns after the answer do not repeat it.
"""

from __future__ import annotations

import codecs
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

from structgen.decode import Sampler, start_generation
from structgen.decode.diffusion.posterior import CanvasSampler
from structgen.decode.step.context import check_start
from structgen.decode.step.result import spelled_bytes, spelled_text
from structgen.engine import compile
from structgen.errors import ProgramError
from structgen.frontends.chat import Family, load_family, think
from structgen.frontends.chat.family import family_of_tags, spelled, stop_string_of, text_without
from structgen.models.control_tokens import token_test
from structgen.program.answer import Answer
from structgen.program.backends import ProgramSettings, seed_of_stream
from structgen.program.backends.canvas_answer import CanvasAnswerStream
from structgen.program.backends.remote_answer import RemoteAnswerStream
from structgen.program.outcome import Thinking
from structgen.program.stream.event import Text, Thought

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from structgen.decode import AnyCanvasSampler, AnySampler
    from structgen.engine import Constraint, Vocabulary
    from structgen.program.backends import AnswerStream
    from structgen.program.backends.canvas_answer import CanvasConversation
    from structgen.program.backends.remote_answer import RemoteConversation
    from structgen.program.conversation import Conversation

__all__ = ["think_in_tokens", "think_on_a_canvas", "think_remotely"]

_PLAIN: Final = "hermes"  # the family whose tags are written as text where the vocabulary has none
_TAGGED_HINT: Final = "Before you answer, think about it in a few sentences, between <think> and </think>."
_HINT: Final = "Before you answer, think about it in a few sentences. Do not answer yet."
_STREAM: Final = 1 << 32  # of the random numbers of a thought, other than those of tries


@final
@dataclass(frozen=True, slots=True)
class _Form:
    """How a model writes a thought.

    Attributes:
        family: whose tags it has.
        hint: what the prompt says about it; ``""`` for models that think by themselves.
        end: the text that ends the thought, up to the closing tag.
    """

    family: Family
    hint: str
    end: str

    @property
    def start(self) -> str:
        """The text before the thought."""
        return "" if self.family.thought is None else self.family.thought.layout.prefix


def think_in_tokens(
    conversation: Conversation, constraint: Constraint, settings: ProgramSettings, sampler: AnySampler, subject: str
) -> Generator[Thought, None, Thinking]:
    """Let a model that writes token by token think; its context holds the thought afterwards.

    ``constraint`` is that of the answer that follows: whether both fit is checked before the first forward pass.

    Raises:
        ProgramError: the sampler writes whole outputs.
        BudgetError, GenerationError: as ``structgen.decode.start_generation``, of the thought or of the answer.
    """
    if not isinstance(sampler, Sampler):
        raise _wrong_sampler(sampler, subject)
    model = conversation.model
    form = _form_of(model.vocabulary)
    context = conversation.ready(form.hint)
    is_open = spelled_text(model.vocabulary, context.tokens[-16:]).rstrip().endswith(form.start.strip())
    grammar = think(family=form.family, is_open=is_open)
    before_answer = form.family.text.layout.prefix
    if before_answer:
        grammar = grammar + spelled(before_answer, form.family.tokens)
    written = compile(grammar, model.vocabulary, limits=settings.limits)
    # No way to write the tags is shorter than this one, so at most `think` tokens are between them.
    most = settings.think + written.min_tokens()
    check_start(model, len(context) + most, constraint, settings.max_tokens)
    generation = start_generation(
        context,
        written,
        max_tokens=most,
        sampler=sampler,
        seed=seed_of_stream(settings.seed, _STREAM),
        drafter=settings.drafter,
        alternatives=settings.alternatives,
    )
    reader = _ThoughtReader(model.vocabulary, "" if is_open else form.start, form.end)
    for chunk in generation:
        piece = reader.read(chunk.tokens)
        if piece:
            yield Thought(piece)
    return Thinking(reader.text, generation.result())


def think_on_a_canvas(
    conversation: CanvasConversation, settings: ProgramSettings, sampler: AnyCanvasSampler, subject: str
) -> Generator[Thought, None, Thinking]:
    """Let a model fill a canvas of ``settings.think`` slots with a thought; the next canvas comes after it.

    Raises:
        ProgramError: the sampler samples whole trajectories.
        as ``CanvasAnswerStream``, when it is iterated over.
    """
    if not isinstance(sampler, CanvasSampler):
        raise _wrong_sampler(sampler, subject)
    form, model = _plain_form(), conversation.model
    prompt_ids = conversation.prompt_ids(_HINT)
    start = model.encode_prompt(form.start, chat=False)
    own = replace(_settings_of_thought(settings), unmasking=replace(settings.unmasking, canvas=None))
    writing = CanvasAnswerStream(model, [*prompt_ids, *start], _free_answer(form), own, sampler=sampler)
    thinking = yield from _thought_of(writing)
    tokens = writing.outcome.result.tokens
    end = model.encode_prompt(f"{form.end}\n\n", chat=False)
    conversation.thought([*start, *(tokens if isinstance(tokens, tuple) else ()), *end])
    return thinking


def think_remotely(
    conversation: RemoteConversation, settings: ProgramSettings, sampler: AnySampler
) -> Generator[Thought, None, Thinking]:
    """Ask a server for a thought, in a request of its own; the request for the answer has it as a turn.

    Raises:
        as ``RemoteAnswerStream``, when it is iterated over.
    """
    prompt = conversation.prompt(_HINT)
    own = _settings_of_thought(settings)
    writing = RemoteAnswerStream(conversation.model, prompt, _free_answer(None), own, sampler=sampler)
    thinking = yield from _thought_of(writing)
    conversation.thought(_HINT, thinking.text)
    return thinking


def _thought_of(writing: AnswerStream) -> Generator[Thought, None, Thinking]:
    """Run an answer that is a thought."""
    for event in writing:
        if isinstance(event, Text) and event.text:
            yield Thought(event.text)
    return Thinking(writing.outcome.text, writing.outcome.result)


def _settings_of_thought(settings: ProgramSettings) -> ProgramSettings:
    seed = seed_of_stream(settings.seed, _STREAM)
    return replace(
        settings,
        max_tokens=settings.think,
        seed=seed,
        potentials=(),
        alternatives=0,
        marginals=False,
        canonical=False,
    )


def _free_answer(form: _Form | None) -> Answer:
    """Free text, without the tag that ends it."""
    return Answer(str, text_without("" if form is None else form.end.strip()), "text")


def _wrong_sampler(sampler: object, subject: str) -> ProgramError:
    return ProgramError(
        subject,
        "a thought is written piece by piece, before the answer",
        evidence=f"{type(sampler).__name__} weighs whole outputs",
        remedy="take a sampler of tokens (of completions, for a diffusion model), or leave think out",
    )


def _form_of(vocabulary: Vocabulary) -> _Form:
    """The form of the family whose tags the vocabulary has as tokens."""
    family = family_of_tags(token_test(vocabulary))
    return _plain_form() if family is None else _Form(family, "", _end_of(family))


@functools.cache
def _plain_form() -> _Form:
    family = load_family(_PLAIN)
    return _Form(family, _TAGGED_HINT, _end_of(family))


def _end_of(family: Family) -> str:
    end = "" if family.thought is None else family.thought.layout.end
    stop = stop_string_of(end, family.tokens)
    return end[: end.find(stop) + len(stop)]


@final
class _ThoughtReader:
    """Reads the text between the tags while it is written.

    Attributes:
        text: what was read, joined.
    """

    def __init__(self, vocabulary: Vocabulary, start: str, end: str) -> None:
        self._vocabulary = vocabulary
        self._end = end
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._skip = len(start)
        self._held = ""  # text that may be a prefix of the end
        self._is_over = False
        self.text = ""

    def read(self, tokens: Sequence[int]) -> str:
        """Return the text that the next tokens add."""
        if self._is_over:
            return ""
        piece = self._decoder.decode(spelled_bytes(self._vocabulary, tokens))
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        held = self._held + piece[skipped:]
        at = held.find(self._end)
        self._is_over = at >= 0
        if at < 0:  # hold back what may be a prefix of the end
            at = len(held) - max(n for n in range(len(self._end)) if held.endswith(self._end[:n]))
        self._held = held[at:]
        self.text += held[:at]
        return held[:at]
