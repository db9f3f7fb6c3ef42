"""Programs on models on a server: what such a model is, and how its answers are checked here.

A server returns text.  Whether it keeps to the constraint that it was given is its own affair, so every answer is
followed by the local automaton byte by byte, and the type's own validators see each field as soon as it is there.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, final, runtime_checkable

from structgen.decode.step.background import Returning
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError, ValidationFailed
from structgen.program.backends import AnswerStream, ProgramSettings, compact_grammar, log_refusal
from structgen.program.conversation import BaseConversation, with_hint
from structgen.program.json_cursor import SCALAR_BYTES, FieldEnd, JsonCursor, Path, path_text
from structgen.program.outcome import FieldScore, Outcome, Served, Violation
from structgen.program.stream.event import Event, ObjectFinal, Retracted, Text
from structgen.program.stream.field_tracker import ValueRefused, field_tracker_of, value_of_text

if TYPE_CHECKING:
    from structgen.decode import AnySampler
    from structgen.engine import Constraint
    from structgen.program.answer import Answer
    from structgen.program.outcome import Loss
    from structgen.program.stream.event import Partial

__all__ = ["Ending", "RemoteAnswerStream", "RemoteConversation", "RemoteModel", "RemotePrompt"]

RemotePrompt: TypeAlias = "str | tuple[dict[str, str], ...]"
"""A text to continue, or the messages of a chat; a last message of the assistant is continued."""

# Servers choose the whitespace between values, so it is left out before the automaton reads on.
_SPACE: Final = b" \t\n\r"
_ASSISTANT: Final = "assistant"
_ANSWER_NOW: Final = "Now write the answer, and nothing else."


@final
@dataclass(frozen=True, slots=True)
class Ending:
    """How a server's answer ended.

    Attributes:
        finish_reason: ``"stop"``, or ``"length"`` where the server cut it off.
        prompt_tokens: tokens of the prompt; None where the server does not tell.
        tokens: tokens of the output; likewise.
        losses: the parts of the constraint that the server was not asked to enforce, or is not known to enforce.
    """

    finish_reason: Literal["stop", "length"]
    prompt_tokens: int | None = None
    tokens: int | None = None
    losses: tuple[Loss, ...] = ()


@runtime_checkable
class RemoteModel(Protocol):
    """A model on a server; may be used by several threads at a time."""

    @property
    def name(self) -> str:
        """The name in messages and traces."""

    @property
    def tries(self) -> int:
        """The maximum number of requests for one answer."""

    def serve(
        self, prompt: RemotePrompt, answer: Answer, *, max_tokens: int, sampler: AnySampler, seed: int
    ) -> Generator[str, None, Ending]:
        """Ask for one answer and yield its text as it comes; closing the generator ends the request.

        Raises:
            ModelError: the server can't be reached, refuses, fails, or ignores constraints.
            GrammarError: the server has no notation for the answer.
        """


@final
class RemoteConversation(BaseConversation):
    """The turns of a conversation with a model on a server; each request sends all of them."""

    def __init__(self, model: RemoteModel, *, chat: bool = True) -> None:
        super().__init__(chat=chat)
        self.model = model
        self._thought: tuple[str, str] | None = None  # the request for it, and what came

    def prompt(self, hint: str = "") -> RemotePrompt:
        """The messages of the request; the assistant's turn is open from here on.

        ``hint`` is added at the end, in this request only.

        Raises:
            ProgramError: the conversation is empty.
        """
        turns = self._turns
        asked, thought = self._thought or (hint, "")
        if not turns.chat:
            return f"{turns.text}\n\n{asked}\n\n{thought}\n\n" if asked else turns.text
        turns.open_answer()
        messages = with_hint(turns.messages, asked)
        if thought:
            messages = (*messages, {"role": _ASSISTANT, "content": thought}, {"role": "user", "content": _ANSWER_NOW})
        return messages

    def thought(self, hint: str, text: str) -> None:
        """Note a thought, and the request for it, for the prompt of the next answer; an empty one is none."""
        self._thought = (hint, text) if text.strip() else None

    def written(self, text: str, tokens: Sequence[int] = ()) -> None:
        """See ``BaseConversation.written``."""
        super().written(text, tokens)
        self._thought = None


class _Rejected(Exception):
    """The text of the server is not a valid answer."""

    def __init__(self, path: Path, text: str, problem: str) -> None:
        self.violation = Violation(path, text, problem)


@final
class RemoteAnswerStream(AnswerStream):
    """Asks a server for an answer: see ``AnswerStream``.

    A text that violates the grammar or the type's own validators is dropped as soon as that is certain, and requested
    again; in a chat the model gets the reason.

    Args:
        model: the server's model, whose own bound of tries holds too.
        prompt: the conversation so far.
        answer, settings: see ``AnswerStream``; each further try takes the next seed.
        sampler: chooses tokens, as far as the server knows it.
    """

    def __init__(
        self,
        model: RemoteModel,
        prompt: RemotePrompt,
        answer: Answer,
        settings: ProgramSettings,
        *,
        sampler: AnySampler,
    ) -> None:
        super().__init__(answer, settings)
        self._model = model
        self._prompt = prompt
        self._sampler = sampler
        self._tries = min(settings.tries, model.tries)
        self._constraint = compile(compact_grammar(answer), _byte_vocabulary(), limits=settings.limits)

    def __iter__(self) -> Iterator[Event]:
        """The events up to ``ObjectFinal``.

        Raises:
            ValidationFailed: no answer within the tries did.
            GenerationError: the server cut the answer off at ``max_tokens``.
            ModelError: as ``RemoteModel.serve``.
            GrammarError: as ``RemoteModel.serve``.
        """
        prompt = self._prompt
        draft = _ReceivedText(self._answer, self._constraint)
        while self._outcome is None:
            try:
                yield from self._try(prompt, draft)
            except _Rejected as rejected:
                violation = rejected.violation
                self._violations.append(violation)
                log_refusal(self._violations)
                if len(self._violations) >= self._tries:
                    raise ValidationFailed(
                        path_text(violation.path), [(each.text, each.problem) for each in self._violations]
                    ) from None
                prompt = _with_correction(self._prompt, draft.text, violation)
                draft = _ReceivedText(self._answer, self._constraint)
                yield Retracted(0, violation.path, violation.problem, *draft.so_far)

    def _try(self, prompt: RemotePrompt, draft: _ReceivedText) -> Iterator[Event]:
        pieces = self._model.serve(
            prompt,
            self._answer,
            max_tokens=self._settings.max_tokens,
            sampler=self._sampler,
            seed=self._settings.seed + len(self._violations),
        )
        with Returning(pieces) as received:
            for piece in received:
                yield from draft.read(piece)
        ending = received.value
        if ending.finish_reason == "length" and not draft.is_complete:
            raise GenerationError(
                "answer",
                f"the server cut it off at max_tokens={self._settings.max_tokens}",
                evidence=f"so far it is {draft.text[-80:]!r}",
                remedy="raise max_tokens, or ask for less",
            )
        value = yield from draft.finish()
        served = Served(
            text=draft.text,
            finish_reason=ending.finish_reason,
            requests=len(self._violations) + 1,
            prompt_tokens=ending.prompt_tokens,
            tokens=ending.tokens,
            losses=ending.losses,
        )
        self._outcome = Outcome(self._answer, served, value, draft.fields(value), tuple(self._violations))
        yield ObjectFinal(value)


@final
class _ReceivedText:
    """One text on its way from the server, followed by the automaton and by the checks of the fields."""

    def __init__(self, answer: Answer, constraint: Constraint) -> None:
        self._answer = answer
        self._matcher = constraint.matcher()
        self._tracker = field_tracker_of(answer)
        self._in_string = self._escaped = False
        self._last = 0  # the last byte that is no whitespace between values
        self._after_space = False
        self._space = b""  # received last, and not yet read by the cursor
        self.text = ""

    @property
    def is_complete(self) -> bool:
        """Whether the text belongs to the grammar."""
        return self._matcher.is_accepting

    def read(self, piece: str) -> Iterator[Event]:
        """Read on; yield the events of the fields that become final.

        Raises:
            _Rejected: what came can't belong to any answer.
        """
        self.text += piece
        data = piece.encode("utf-8", "surrogatepass")
        significant = data if self._tracker is None else self._without_space(data)
        accepted = self._matcher.accept_bytes(significant)
        if accepted < len(significant):
            found = significant[accepted : accepted + 40].decode("utf-8", "replace")
            expected = "nothing more" if self._matcher.is_terminated else _describe_bytes(self._matcher.live_bytes())
            path = () if self._tracker is None else self._tracker.path
            raise _Rejected(path, self.text, f"found {found!r}, expected {expected}")
        if self._tracker is None:
            yield Text(piece)
            return
        events = self._tracker.read(self._but_last_space(data), self._matcher)
        yield Text(piece, name=self._tracker.name)
        with _rejecting():
            yield from events

    def finish(self) -> Generator[Event, None, Any]:
        """The text is complete; the value is the one that it spells.

        Raises:
            _Rejected: it is no answer.
        """
        if not self._matcher.is_accepting:
            expected = _describe_bytes(self._matcher.live_bytes())
            raise _Rejected((), self.text, f"the text ends too early; expected {expected}")
        if self._tracker is None:
            with _rejecting():
                return value_of_text(self._answer, self.text)
        with _rejecting():
            yield from self._tracker.finish()
        return self._tracker.value

    @property
    def so_far(self) -> tuple[Partial, int] | tuple[()]:
        """See ``FieldTracker.so_far``."""
        return () if self._tracker is None else self._tracker.so_far

    def fields(self, value: Any) -> tuple[FieldScore, ...]:
        """The fields, without probabilities."""
        if self._tracker is None:
            return (FieldScore((), value, 0, len(self.text.encode()), None),)
        cursor = JsonCursor()  # what was reported ahead has no place in the text
        found = [*cursor.feed(self.text.encode()), *cursor.finish()]
        return tuple(
            FieldScore(end.path, end.value, end.start, end.end, None) for end in found if isinstance(end, FieldEnd)
        )

    def _without_space(self, data: bytes) -> bytes:
        """The bytes without whitespace, except that within a word or a number, which the automaton is to refuse."""
        kept = bytearray()
        for byte in data:
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif byte == ord("\\"):
                    self._escaped = True
                elif byte == ord('"'):
                    self._in_string = False
            elif byte in _SPACE:
                self._after_space = True
                continue
            elif byte == ord('"'):
                self._in_string = True
            if self._after_space and self._last in SCALAR_BYTES and byte in SCALAR_BYTES:
                kept += b" "
            kept.append(byte)
            self._after_space, self._last = False, byte
        return bytes(kept)

    def _but_last_space(self, data: bytes) -> bytes:
        """What the cursor may read: whitespace ends a scalar, so the last waits until something follows it."""
        data = self._space + data
        end = len(data) if self._in_string else len(data.rstrip(_SPACE))
        self._space = data[end:]
        return data[:end]


@contextmanager
def _rejecting() -> Iterator[None]:
    """A value that a check refuses makes the text one that does not do."""
    try:
        yield
    except ValueRefused as refused:
        end = refused.end
        raise _Rejected(end.path, end.data.decode("utf-8", "replace"), refused.problem) from None


@functools.cache
def _byte_vocabulary() -> Vocabulary:
    return Vocabulary([b"", *(bytes([value]) for value in range(256))], eos=[0])


def _with_correction(prompt: RemotePrompt, text: str, violation: Violation) -> RemotePrompt:
    """The prompt with what was wrong, where there is a turn for it."""
    if isinstance(prompt, str) or prompt[-1]["role"] == _ASSISTANT:
        return prompt
    place = f" at {path_text(violation.path)}" if violation.path else ""
    refusal = f"That answer is refused{place}: {violation.problem}. Answer again, in the same form."
    return (*prompt, {"role": _ASSISTANT, "content": text or " "}, {"role": "user", "content": refusal})


def _describe_bytes(choices: bytes) -> str:
    """Bytes that may come, in a few words."""
    if len(choices) > 12:
        return "something else"
    return " or ".join(repr(chr(byte)) if byte < 128 else f"byte 0x{byte:02x}" for byte in choices) or "nothing more"
