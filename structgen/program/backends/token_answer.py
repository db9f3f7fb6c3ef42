"""One answer being written: events as its fields become final; a field that a check refuses is sampled again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from structgen.decode import Sampler, start_generation
from structgen.decode.potentials import Lifted, NoValue, Potential, Product, as_potential
from structgen.errors import GenerationError, ProgramError, ValidationFailed
from structgen.program.backends.field_marginals import field_marginals
from structgen.program.backends.quotation_search import QuotationSearch
from structgen.program.json_cursor import NUMBER_BYTES, FieldEnd, Path, path_text
from structgen.program.outcome import FieldScore, Outcome, Violation, field_scores, token_offsets
from structgen.program.stream.event import Event, ObjectFinal, Retracted, Text
from structgen.program.stream.field_tracker import ValueRefused, field_tracker_of, value_of_text

if TYPE_CHECKING:
    from structgen.decode import AnyDrafter, AnyPotential, AnySampler, Context, Generation, Result
    from structgen.engine import Constraint
    from structgen.program.answer import Answer

__all__ = ["TokenAnswerStream"]

_FORBIDDEN: Final = Violation((), "", "the potentials forbid what it led to")


@final
class TokenAnswerStream:
    """Lets a model write an answer; iterate over its events, then ask for the ``outcome``.

    A field that its type's own validators refuse is taken back at once and sampled again without the tokens that led
    there.  So no refused value stays in the context, and the sampler chooses from the remaining tokens.

    Args:
        context: what the answer is added to.
        answer: the requested answer.
        constraint: its grammar, compiled for the model's vocabulary.
        max_tokens: see ``structgen.generate``.
        sampler: see ``structgen.generate``.
        potentials: see ``structgen.generate``.
        seed: see ``structgen.generate``.
        drafter: see ``structgen.generate``.
        tries: the maximum number of samples of one field.
        alternatives: see ``structgen.decode.start_generation``.
        marginals: whether to compute ``FieldScore.marginals``, which takes forward passes of its own.

    Raises:
        as ``structgen.decode.start_generation``.
    """

    def __init__(  # noqa: PLR0913  each of them is a keyword that the program's settings have
        self,
        context: Context,
        answer: Answer,
        constraint: Constraint,
        *,
        max_tokens: int,
        sampler: AnySampler,
        potentials: Sequence[AnyPotential] = (),
        seed: int,
        drafter: AnyDrafter = "auto",
        tries: int,
        alternatives: int = 0,
        marginals: bool = False,
    ) -> None:
        self._answer = answer
        self._tries = tries
        self._max_tokens = max_tokens
        self._marginals = marginals
        self._generation = start_generation(
            context,
            constraint,
            max_tokens=max_tokens,
            sampler=sampler,
            potentials=[_on_values(potential, answer) for potential in potentials],
            seed=seed,
            drafter=drafter,
            alternatives=alternatives,
        )
        if answer.source is not None and answer.source.search_limit and not isinstance(sampler, Sampler):
            raise ProgramError(
                "answer",
                "the most probable quotations are searched for where tokens are chosen one by one",
                evidence=f"{type(sampler).__name__} writes whole outputs",
                remedy="take evidence=True, or a sampler of tokens",
            )
        self._follower = field_tracker_of(answer)
        self._told_tokens = 0
        self._violations: list[Violation] = []
        source = answer.source
        self._exact = (
            QuotationSearch(self._generation, source, is_text=answer.form == "text", violations=self._violations)
            if source is not None and source.search_limit
            else None
        )
        self._outcome: Outcome | None = None

    @property
    def generation(self) -> Generation:
        """The output in progress."""
        return self._generation

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
        """The events up to ``ObjectFinal``.

        Raises:
            ValidationFailed: checks refused all values of a field that were tried.
            GenerationError: as ``structgen.generate``.
        """
        while self._outcome is None:
            try:
                for chunk in self._exact or self._generation:
                    if chunk.start < self._told_tokens:
                        yield self._taken_back(chunk.start)
                    self._told_tokens = chunk.start + len(chunk.tokens)
                    yield Text(chunk.text)
                    if self._follower is not None:
                        yield from self._follower.read(self._bytes_of(chunk.tokens), self._generation.matcher)
                yield from self._finished()
            except ValueRefused as refused:
                yield self._retract(refused)
            except GenerationError as error:
                if not self._violations or isinstance(error, ValidationFailed):
                    raise
                raise self._failure(self._violations[-1].path) from error

    def _bytes_of(self, tokens: tuple[int, ...]) -> bytes:
        return self._generation.vocabulary.decode(tokens)

    def _finished(self) -> Iterator[Event]:
        """The end of the text: what ends with it, and the value of the whole."""
        if self._follower is not None:
            yield from self._follower.finish()
        result = self._generation.result()
        value = value_of_text(self._answer, result.text) if self._follower is None else self._follower.value
        self._outcome = Outcome(
            self._answer,
            result,
            value,
            self._fields(result, value),
            tuple(self._violations),
            {} if self._exact is None else self._exact.logprobs,
        )
        yield ObjectFinal(value)

    def _fields(self, result: Result, value: Any) -> tuple[FieldScore, ...]:
        whole = FieldEnd((), result.data, 0, len(result.data))
        ends = [whole] if self._follower is None else self._follower.ends
        known = None
        if self._marginals:
            offsets = token_offsets(result.tokens, result.vocabulary.tokens)
            known = field_marginals(self._generation, self._answer, ends, offsets, max_tokens=self._max_tokens)
        return field_scores(self._answer, result, ends, value, marginals=known)

    def _retract(self, refused: ValueRefused) -> Retracted:
        """Take back the field that was refused."""
        end, generation = refused.end, self._generation
        text = end.data.decode("utf-8", "replace")
        self._violations.append(Violation(end.path, text, refused.problem))
        if sum(each.path == end.path for each in self._violations) >= self._tries:
            raise self._failure(end.path)
        tokens = generation.tokens
        offsets = token_offsets(tokens, generation.vocabulary.tokens)
        keep = max(bisect_left(offsets, end.start + 1) - 1, 0)
        generation.reject(len(tokens), keep=keep, also=self._alike(end, offsets[len(tokens) - 1]) if tokens else ())
        return self._taken_back(keep)

    def _taken_back(self, count: int) -> Retracted:
        """Go on from the first ``count`` tokens."""
        self._told_tokens = count
        kept = self._bytes_of(self._generation.tokens[:count])
        if self._follower is not None:
            self._follower.restart(kept)
        so_far = () if self._follower is None else self._follower.so_far
        last = self._violations[-1] if self._violations else _FORBIDDEN
        return Retracted(len(kept.decode("utf-8", "ignore")), last.path, last.problem, *so_far)

    def _alike(self, end: FieldEnd, start: int) -> list[int]:
        """The tokens that, at byte ``start``, complete the refused value as well."""
        is_number = NUMBER_BYTES.issuperset(end.data[:1])
        if start >= end.end and not is_number:
            return []  # it was complete before: what follows it is forced
        rest = self._generation.data[start : end.end]
        size = len(rest)
        return [
            token
            for token, text in enumerate(self._generation.vocabulary.tokens)
            if text.startswith(rest) and (not is_number or (len(text) > size and text[size] not in NUMBER_BYTES))
        ]

    def _failure(self, path: Path) -> ValidationFailed:
        return ValidationFailed(
            path_text(path), [(each.text, each.problem) for each in self._violations if each.path == path]
        )


def _on_values(subject: AnyPotential, answer: Answer) -> Potential:
    """A potential that is given the answer's own values; those that its checks refuse are forbidden."""
    from pydantic import ValidationError

    def value(data: bytes) -> Any:
        try:
            return answer.value(data.decode())
        except ValidationError as error:
            raise NoValue from error

    factors = Product([as_potential(subject)]).factors
    return Product([factor.reading(value) if isinstance(factor, Lifted) else factor for factor in factors])
