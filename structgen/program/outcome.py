"""The result of a program: its value, the outcome of each answer, and the log-probability of each field."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, final

from structgen.decode.step.result import Stats, result_pieces
from structgen.markup import Piece, bars, card, pieces, shortened, table
from structgen.program.json_cursor import Located, Path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from structgen.decode import Result
    from structgen.program.answer import Answer, Evidence
    from structgen.program.json_cursor import FieldEnd
    from structgen.program.trace import Trace

__all__ = [
    "FieldScore",
    "Loss",
    "Outcome",
    "Run",
    "Served",
    "Thinking",
    "Violation",
    "field_scores",
    "token_offsets",
]

Value = TypeVar("Value")


@final
@dataclass(frozen=True, slots=True)
class FieldScore(Located):
    """One field of an answer.

    Attributes:
        path: keys and indices from the root.
        value: as ``json.loads`` reads it.
        start: byte of the answer where it begins.
        end: byte after its last.
        logprob: log-probability of its tokens in the masked distribution: of the chosen value among the allowed
            ones, as these tokens spell it; None where a server wrote it, for it does not tell.
        marginals: the probability of each possible value, given the text before it, however it is
            spelled, the most probable first; they sum to 1.  Of a canvas: see
            ``structgen.program.backends.field_marginals``.  None unless requested, and where a field has many values.
        is_cut: whether some of its text was written while the budget excluded tokens that the grammar allows: with more
            tokens the value may be another one.
    """

    path: Path
    value: Any
    start: int
    end: int
    logprob: float | None
    marginals: Mapping[Any, float] | None = None
    is_cut: bool = False

    @property
    def probability(self) -> float | None:
        """The mass of the value, as it is spelled, among what was allowed; None where that is not known."""
        return None if self.logprob is None else math.exp(self.logprob)


@final
@dataclass(frozen=True, slots=True)
class Violation:
    """A value that a check refused and that was sampled again."""

    path: Path
    text: str
    problem: str


@final
@dataclass(frozen=True, slots=True)
class Loss:
    """A part of a constraint that a server does not enforce.

    Its text is checked on arrival, and requested again where it is wrong.

    Attributes:
        where: JSON Pointer into the schema (``#/...``).
        keyword: the keyword.
        problem: how the server treats it.
    """

    where: str
    keyword: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.keyword!r} {self.problem}"


@final
@dataclass(frozen=True, slots=True)
class Served:
    """A text that a server wrote: a result without scores.

    Attributes:
        text: the output.
        finish_reason: as in ``Result``.
        requests: the number of requests.
        prompt_tokens: tokens of the prompt of the last request; None where the server does not tell.
        tokens: tokens of the output; likewise.
        losses: what of the constraint the server is not known to enforce.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    requests: int
    prompt_tokens: int | None
    tokens: int | None
    losses: tuple[Loss, ...]


@final
@dataclass(frozen=True, slots=True)
class Thinking:
    """A thought before an answer.

    Attributes:
        text: without the tags around it.
        result: the output that it is, with its scores; its ``finish_reason`` tells whether its budget cut it.
    """

    text: str
    result: Result | Served = field(repr=False)


@final
@dataclass(frozen=True)
class Outcome:
    """One answer of the model within a program.

    Attributes:
        answer: the requested answer.
        result: the output with its scores; of a model on a server ``Served``, without.
        value: the value that it spells.
        fields: the fields of a JSON answer, in the order in which they end; of a text the whole.
        violations: what checks refused on the way.
        exact: the log-probabilities of the quotations that were searched for, by their paths.
        limited: the lists and strings that the guard has ended, by name, and why: see ``structgen.program.Guard``.
        thinking: what the model thought before it; None unless ``think`` was set.
    """

    answer: Answer = field(repr=False)
    result: Result | Served
    value: Any
    fields: tuple[FieldScore, ...] = ()
    violations: tuple[Violation, ...] = ()
    exact: Mapping[Path, float] = field(default_factory=dict, repr=False)
    limited: Mapping[str, str] = field(default_factory=dict)
    thinking: Thinking | None = None

    @property
    def text(self) -> str:
        """The output."""
        return self.result.text

    @property
    def thought(self) -> str | None:
        """The text of the thought before the answer; None if there was none."""
        return None if self.thinking is None else self.thinking.text

    def parts(self) -> Iterator[list[Piece]]:
        """The thought, if there was one, and the output, for ``structgen.markup``."""
        for result in self.results():
            yield [Piece(result.text)] if isinstance(result, Served) else list(result_pieces(result))

    def results(self) -> list[Result | Served]:
        """The thought, if there was one, and the output."""
        return [self.result] if self.thinking is None else [self.thinking.result, self.result]

    def html_parts(self) -> Iterator[str]:
        """The thought, the output and the fields, as HTML."""
        yield from map(pieces, self.parts())
        leaves = [held for held in self.fields if held.path and not isinstance(held.value, (dict, list))]
        known = [(held, held.probability) for held in leaves if held.probability is not None]
        if known:
            rows = [
                (held.name, share, f"{share:.3g}  {_short_json(held.value)}{', cut' if held.is_cut else ''}")
                for held, share in known
            ]
            yield bars("fields, and the probability of their values", rows)
        for held in self.fields:
            if held.marginals is not None:
                values = [(_short_json(value), share, f"{share:.3g}") for value, share in held.marginals.items()]
                yield bars(f"all values of {held.name or 'the answer'}", values)

    def __repr__(self) -> str:
        return f"Outcome({shortened(repr(self.value))}, {self.result!r})"

    def _repr_html_(self) -> str:
        return card("Outcome", *self.html_parts())

    @cached_property
    def evidence(self) -> tuple[Evidence, ...]:
        """The positions of quoted fields in the document; empty where nothing is quoted."""
        source = self.answer.source
        if source is None:
            return ()
        return source.evidence(self.text if self.answer.form == "text" else json.loads(self.text), self.exact)

    @cached_property
    def probabilities(self) -> Mapping[str, float]:
        """The probability of each field by its name, where it is known: see ``FieldScore.probability``."""
        return {held.name: held.probability for held in self.fields if held.probability is not None}


@final
@dataclass(frozen=True)
class Run(Generic[Value]):
    """A program's result.

    Attributes:
        value: what the program returns.
        text: all that was written, the program's own text included.
        outcomes: the answers of the model, in order.
        program: name of the program.
        arguments: what it was called with.
        model: name of the model.
        seed: of the random numbers.
    """

    value: Value
    text: str
    outcomes: tuple[Outcome, ...]
    program: str
    arguments: Mapping[str, Any] = field(repr=False)
    model: str = ""
    seed: int = 0

    @property
    def thought(self) -> str | None:
        """The model's thought before its last answer; None if there was none.  ``outcomes`` has all thoughts."""
        return self.outcomes[-1].thought if self.outcomes else None

    @property
    def log_z(self) -> float | None:
        """Sum over all answers of the log of the probability that their masks kept: see ``Result.log_z``.

        Thoughts are left out.  None where a server wrote one of them, as with ``logprob`` and ``stats``.
        """
        results = self._results
        return None if results is None else sum(result.log_z for result in results)

    @property
    def logprob(self) -> float | None:
        """Log-probability of all answers in the masked distribution."""
        results = self._results
        return None if results is None else sum(result.logprob for result in results)

    @cached_property
    def fields(self) -> Mapping[str, FieldScore]:
        """The fields by name; those of the last answer where several have a name in common."""
        return {held.name: held for outcome in self.outcomes for held in outcome.fields}

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """``"length"`` if the budget decided anything in some answer: see ``Result.finish_reason``."""
        reasons = [outcome.result.finish_reason for outcome in self.outcomes]
        return "length" if "length" in reasons else "stop"

    @property
    def cut_fields(self) -> list[str]:
        """The names of the fields with ``is_cut``."""
        return [held.name for outcome in self.outcomes for held in outcome.fields if held.is_cut and held.path]

    @property
    def limited(self) -> Mapping[str, str]:
        """The lists and strings that the guard has ended, by name, and why."""
        return {name: reason for outcome in self.outcomes for name, reason in outcome.limited.items()}

    @cached_property
    def evidence(self) -> tuple[Evidence, ...]:
        """The positions of the quoted fields of all answers in their documents."""
        return tuple(held for outcome in self.outcomes for held in outcome.evidence)

    @cached_property
    def stats(self) -> Stats | None:
        """The sums over all answers and the thoughts before them."""
        results = self._results
        if results is None:
            return None
        written = [result for outcome in self.outcomes for result in outcome.results()]
        return Stats.total([result.stats for result in written if not isinstance(result, Served)])

    @cached_property
    def trace(self) -> Trace:
        """What happened, as plain data for JSON: see ``structgen trace``; in a notebook a table of all tokens."""
        from structgen.program.trace import trace_of

        return trace_of(self)

    @property
    def _results(self) -> list[Result] | None:
        """The results, if all have scores."""
        results = [outcome.result for outcome in self.outcomes if not isinstance(outcome.result, Served)]
        return results if len(results) == len(self.outcomes) else None

    def __str__(self) -> str:
        lines = [f"value: {shortened(repr(self.value), 300)}", f"finish reason: {self.finish_reason}"]
        if self.thought is not None:
            lines.insert(0, f"thought: {shortened(self.thought, 300)}")
        if self.cut_fields:
            lines.append(f"cut fields: {shortened(', '.join(self.cut_fields), 200)}")
        return "\n".join([*lines, f"cost: {self._cost}"])

    def __repr__(self) -> str:
        return f"Run({shortened(repr(self.value))}, {self.finish_reason}, {self._cost})"

    def _repr_html_(self) -> str:
        facts = [line.partition(": ")[::2] for line in str(self).split("\n")]
        parts = (part for outcome in self.outcomes for part in outcome.html_parts())
        return card(f"{self.program} on {self.model}", table(facts), *parts)

    @property
    def _cost(self) -> str:
        if self.stats is not None:
            return self.stats.summary
        written = [result for outcome in self.outcomes for result in outcome.results()]
        return f"{sum(result.requests for result in written if isinstance(result, Served))} requests"


def _short_json(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr), 60)


def field_scores(
    answer: Answer,
    result: Result,
    ends: Sequence[FieldEnd],
    value: Any,
    *,
    marginals: Iterable[Mapping[Any, float] | None] | None = None,
) -> tuple[FieldScore, ...]:
    """Return the fields of an answer with the log-probabilities of their tokens.

    ``ends`` are the positions of the fields, of a text the whole; ``value`` is what a text spells; ``marginals`` are
    those of each field, where they were requested.
    """
    offsets = token_offsets(result.tokens, result.vocabulary.tokens)
    sums = [0.0]
    for step in result.steps:
        sums.append(sums[-1] + (step.logprob if math.isfinite(step.logprob) else -math.inf))
    is_text = answer.form == "text"
    cut = result.cut_byte
    found: list[FieldScore] = []
    for end, weighed in zip(ends, repeat(None) if marginals is None else marginals, strict=False):
        first = max(bisect_left(offsets, end.start + 1) - 1, 0)
        last = min(bisect_left(offsets, end.end), len(result.tokens))
        if not end.path:
            last = len(result.steps)  # with the stop
        logprob = sums[last] - sums[first]
        is_cut = cut is not None and (end.end > cut or not end.path)
        ranked = None if weighed is None else dict(sorted(weighed.items(), key=lambda held: -held[1]))
        found.append(FieldScore(end.path, value if is_text else end.value, end.start, end.end, logprob, ranked, is_cut))
    return tuple(found)


def token_offsets(tokens: Sequence[int], texts: Sequence[bytes]) -> list[int]:
    """Return the byte at which each token begins, and the end."""
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(texts[token]))
    return offsets
