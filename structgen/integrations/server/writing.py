"""One answer while it is written, in a thread: text, traces, scores, fields that are final, marginals, weights.

A diffusion model fills its canvas in any order; its text is streamed from left to right.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast, final

import numpy as np

from structgen.decode import Chunk, Result, Sampler, Step, start_generation
from structgen.decode.diffusion.fill import fill_steps
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.potentials.canonical import Canonical
from structgen.decode.step.background import Returning
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.program.json_cursor import FieldEnd, JsonCursor

if TYPE_CHECKING:
    from structgen.decode import Context, Generation
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import Unmasking
    from structgen.decode.sampling import Proposal, Samples, SequenceSampler
    from structgen.engine import Constraint, Vocabulary
    from structgen.integrations.server.runner import Task
    from structgen.models.protocol.diffusion import DiffusionModel

__all__ = ["Item", "Scored", "StopWatch", "Trace", "Weighed", "filled", "written"]


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


class Scored(NamedTuple):
    """Further steps of an answer, each with its score; they may come later than their text.

    Attributes:
        steps: those after the steps of earlier ``Scored`` items.
    """

    steps: tuple[Step, ...]


@final
@dataclass(frozen=True, slots=True)
class Weighed:
    """The results of a complete answer.

    Attributes:
        marginals: for each field its position and the probability of each of its values; None for those with many.
        samples: all outputs of a sampler of whole outputs.
    """

    marginals: Sequence[tuple[FieldEnd, Mapping[Any, float] | None]] = ()
    samples: Samples | None = None


Item: TypeAlias = Chunk | Trace | Scored | FieldEnd | Weighed | Result
"""A piece of an answer; the result comes last."""


@final
class StopWatch:
    """Finds the stop that ends first in a text that comes in pieces.

    Text that may begin a stop is held back.  The output does not depend on the pieces.

    Args:
        stops: texts, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Return the text that is known to come before any stop, and whether a stop was found; O(text) per stop."""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            return self._held[: min(found)[1]], True
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        given, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return given, False

    def rest(self) -> str:
        """The text that was held back, at the end of the output."""
        return self._held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop, but are not all of it."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def written(context: Context, task: Task) -> Generator[Item, None, None]:
    """Write the answer to a prompt.

    Args:
        context: the prompt.
        task: the request.

    Raises:
        StructgenError: as ``generate``.
    """
    if not isinstance(task.sampler, Sampler):
        yield from _weighed(context, task, cast("SequenceSampler | Proposal", task.sampler))
        return
    potentials = (Canonical(task.constraint, task.max_tokens),) if task.is_canonical else ()
    generation = start_generation(
        context,
        task.constraint,
        max_tokens=task.max_tokens,
        sampler=task.sampler,
        potentials=potentials,
        seed=task.seed,
        drafter=task.drafter,
        alternatives=task.alternatives,
        score_ending=task.has_scores,
    )
    pieces = _Pieces(generation, task)
    tracer = _Tracer(task.constraint, task.max_tokens) if task.is_traced else None
    for chunk in _settled(generation) if potentials else generation:
        if tracer is not None:
            yield tracer.trace(chunk, generation)
        yield from pieces.add(chunk)
        if pieces.is_over:
            break
    yield from pieces.end()


def _settled(generation: Generation) -> Iterator[Chunk]:
    """The output as one chunk: potentials may take tokens back."""
    for _ in generation:
        pass
    result = generation.result()
    yield Chunk(result.text, result.tokens, forced=False, is_cut=result.cut_at is not None)


@final
class _Pieces:
    """The items of an answer that a ``Generation`` writes."""

    def __init__(self, generation: Generation, task: Task) -> None:
        self.is_over = False
        self._generation = generation
        self._task = task
        self._watch = StopWatch(task.stops)
        self._text: list[str] = []
        self._bytes = 0  # of the text
        self._token_ends: list[int] = []
        self._sent = self._scored = 0  # tokens
        self._cursor = JsonCursor()
        self._ends: list[FieldEnd] = []

    def add(self, chunk: Chunk) -> Iterator[Item]:
        """The items of a chunk."""
        if self._task.stops:
            given, self.is_over = self._watch.feed(chunk.text)
            yield from self._stoppable(chunk, given)
        else:
            self._sent += len(chunk.tokens)
            yield chunk
        yield from self._score(self._generation.steps) if self._task.has_scores else ()
        if self._task.is_json and (self._task.has_events or self._task.has_marginals):
            yield from self._fields(self._cursor.feed(self._generation.vocabulary.decode(chunk.tokens)))

    def _stoppable(self, chunk: Chunk, given: str) -> Iterator[Chunk]:
        """The text that is given, with the tokens that are within it."""
        texts = self._generation.vocabulary.tokens
        for token in chunk.tokens:
            self._token_ends.append((self._token_ends or [0])[-1] + len(texts[token]))
        self._text.append(given)
        self._bytes += len(given.encode())
        start = self._sent
        while self._sent < len(self._token_ends) and self._token_ends[self._sent] <= self._bytes:
            self._sent += 1
        if given or self._sent > start:
            tokens = self._generation.tokens[start : self._sent]
            yield Chunk(given, tokens, chunk.forced, start, is_cut=chunk.is_cut)

    def _score(self, steps: Sequence[Step]) -> Iterator[Scored]:
        end = self._scored
        while end < min(self._sent, len(steps)) and steps[end].log_z is not None:
            end += 1
        if end > self._scored:
            yield Scored(tuple(steps[self._scored : end]))
            self._scored = end

    def _fields(self, found: Sequence[Any]) -> Iterator[FieldEnd]:
        ends = [each for each in found if isinstance(each, FieldEnd)]
        self._ends += ends
        yield from ends if self._task.has_events else ()

    def end(self) -> Iterator[Item]:
        """The last items."""
        generation, task = self._generation, self._task
        if not self.is_over and (rest := self._watch.rest()):
            yield from self._stoppable(Chunk("", (), forced=False, start=self._sent), rest)
        if self.is_over:
            result = Result(
                data="".join(self._text).encode(),
                tokens=generation.tokens[: self._sent],
                steps=generation.steps[: self._sent],
                stats=generation.stats,
                grammar=task.constraint.grammar,
                vocabulary=generation.vocabulary,
            )
        else:
            result = generation.result()
        yield from self._score(result.steps) if task.has_scores else ()
        yield from self._fields(self._cursor.finish()) if task.is_json else ()
        if task.has_marginals:
            yield Weighed(marginals=self._marginals(result))
        yield result

    def _marginals(self, result: Result) -> Sequence[tuple[FieldEnd, Mapping[Any, float] | None]]:
        from structgen.program.answer import Answer
        from structgen.program.backends.field_marginals import field_marginals
        from structgen.program.outcome import token_offsets

        ends = self._ends if self._task.is_json else [FieldEnd((), result.data, 0, len(result.data))]
        answer = Answer(None, result.grammar, "json" if self._task.is_json else "text")
        offsets = token_offsets(result.tokens, result.vocabulary.tokens)
        found = field_marginals(self._generation, answer, ends, offsets, max_tokens=self._task.max_tokens)
        return list(zip(ends, found, strict=True))


def _weighed(context: Context, task: Task, chosen: SequenceSampler | Proposal) -> Iterator[Item]:
    """The answer of a sampler of whole outputs, and all of its outputs with their weights."""
    # Imported here: most answers are written token by token.
    from structgen.decode.sampling.sampler_run import run_sampler, weighted_sampler, whole_speculation

    sampler = weighted_sampler(chosen)
    generator = np.random.Generator(np.random.PCG64(task.seed))
    potentials = (Canonical(task.constraint, task.max_tokens),) if task.is_canonical else ()
    samples = run_sampler(
        sampler,
        context,
        task.constraint,
        potentials=potentials,
        max_tokens=task.max_tokens,
        generator=generator,
        speculation=whole_speculation(task.drafter, sampler),
    )
    result = samples.best() if sampler.takes_best else samples.draw(generator)
    yield Chunk(result.text, result.tokens, forced=False, is_cut=result.cut_at is not None)
    if task.has_scores:
        yield Scored(result.steps)
    if task.is_json and task.has_events:
        cursor = JsonCursor()
        yield from (end for end in (*cursor.feed(result.data), *cursor.finish()) if isinstance(end, FieldEnd))
    yield Weighed(samples=samples)
    yield result


@final
class _Tracer:
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


def filled(model: DiffusionModel, task: Task, unmasking: Unmasking) -> Generator[Item, None, None]:
    """Fill the canvas of a task; a chunk is what the filled slots at its start have gained.

    Raises:
        StructgenError: as ``fill_canvas``.
    """
    steps = fill_steps(
        model,
        task.tokens,
        task.constraint,
        canvas=unmasking.canvas,
        policy=unmasking.policy,
        sampler=task.sampler,  # type: ignore[arg-type]  # of canvases, with unmasking
        temperature=unmasking.temperature,
        block=unmasking.block,
        reuse=unmasking.reuse,
        seed=task.seed,
    )
    start = _CanvasStart(task)
    with Returning(steps) as run:
        for snapshot in run:
            yield from start.add(snapshot)
    yield from start.end(run.value)
    yield run.value


@final
class _CanvasStart:
    """The tokens of a canvas before the first free slot: no later step changes them."""

    def __init__(self, task: Task) -> None:
        self._vocabulary: Vocabulary = task.constraint.vocabulary
        self._has_events = task.has_events
        self._forced: set[int] = set()
        self._sent = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cursor = JsonCursor()

    def add(self, snapshot: Snapshot) -> Iterator[Item]:
        """The text that a commit has made final."""
        self._forced.update(map(int, snapshot.forced))
        end, canvas = self._sent, snapshot.canvas
        while end < len(canvas) and canvas[end] != FREE and int(canvas[end]) not in self._vocabulary.eos:
            end += 1
        yield from self._given(tuple(map(int, canvas[self._sent : end])))

    def _given(self, tokens: tuple[int, ...], *, is_last: bool = False) -> Iterator[Item]:
        data = self._vocabulary.decode(tokens)
        text, start = self._decoder.decode(data, is_last), self._sent
        self._sent += len(tokens)
        if tokens or text:
            yield Chunk(text, tokens, self._forced.issuperset(range(start, self._sent)), start)
        if self._has_events:
            found = [*self._cursor.feed(data), *(self._cursor.finish() if is_last else ())]
            yield from (each for each in found if isinstance(each, FieldEnd))

    def end(self, result: Result) -> Iterator[Item]:
        """The rest."""
        yield from self._given(result.tokens[self._sent :], is_last=True)
