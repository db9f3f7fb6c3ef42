"""``fill_canvas``: one complete output of a diffusion model within a grammar."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.diffusion.canvas import (
    canvas_constraint,
    canvas_language,
    cut_position,
    first_canvas,
    mask_of,
    output_tokens,
)
from structgen.decode.diffusion.canvas_run import CanvasRun
from structgen.decode.diffusion.commit_policy import CommitPolicy, Filling, Static
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.posterior import CanvasSampler, Dingo
from structgen.decode.step.background import Returning
from structgen.decode.step.result import Result, Seconds, Stats, Step
from structgen.errors import GenerationError
from structgen.grammar.limits import counted
from structgen.log import log_cut
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import ArrayLike

    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.forward_pass import Reuse
    from structgen.decode.diffusion.posterior import Canvas
    from structgen.engine import Constraint, Vocabulary
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import Prompt

__all__ = ["fill_canvas", "fill_steps", "shown_canvas"]

_DINGO: Final = Dingo()
_STATIC: Final = Static()


def fill_canvas(  # noqa: PLR0913  as generate: each of them is a keyword with a default
    model: DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    canvas: int | ArrayLike | None = None,
    policy: CommitPolicy | None = None,
    sampler: CanvasSampler = _DINGO,
    temperature: float = 1.0,
    block: int | None = None,
    reuse: Reuse | None = None,
    seed: int = 0,
    stream: Callable[[Snapshot], object] | None = None,
    chat: bool = True,
    limits: Limits | None = None,
) -> Result:
    """Let a diffusion model answer ``prompt`` with a string of ``grammar`` on a canvas.

    Each step is one forward pass. The mean-field distribution of the free slots is restricted to canvases that spell a
    string of the grammar, the sampler takes one completion, and the policy commits some of its slots. Slots for which
    the grammar leaves one token cost no pass. The canvas stays completable at every step.

    In the result, a step's ``logprob`` is the log of the token's constrained marginal when it was committed, and
    ``logprob + log_z`` its log-probability under the model's own distribution of that slot in that pass. Unlike in
    autoregressive decoding, ``log_z`` may be positive: the language can make a token more probable than the model does.

    In a recursive grammar whose next byte does not always decide the parse, a canvas may have several parses.
    Completions and samples are exact all the same, but confidence, ``logprob`` and ``log_z`` count parses.

    Args:
        model: the diffusion model.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint that was compiled for the model's vocabulary.
        canvas: the number of slots, or the token ids of the slots with ``FREE`` or the model's MASK in the slots to
            fill; None for a length that suits the grammar (see ``structgen.decode.diffusion.canvas``).
        policy: decides which slots of a completion are committed; None for ``Static()``, one in each step.
        sampler: takes a completion.
        temperature: of the distributions of the slots.
        block: slots that are filled before those to their right; None to fill the whole canvas in any order.
        reuse: decides which slots a pass recomputes, if the model caches keys and values; None for all.
        seed: of the random numbers; the same seed gives the same output.
        stream: called with the canvas after every commit, and once before the first pass.
        chat: whether a text becomes a message of the model's chat template.
        limits: for compiling a grammar and filling the canvas; a constraint has its own.

    Raises:
        BudgetError: the canvas has fewer slots than the shortest string of the grammar takes.
        GenerationError: the fixed slots cannot be completed, or prompt and canvas exceed the model's context (both are
            checked before any forward pass); or the model returned no usable logits.
        ModelError: the model has no MASK, or the prompt cannot be encoded.
        VocabularyError: the constraint belongs to another vocabulary, or the tokens cannot spell the grammar.
        GrammarError: the grammar does not compile, or has a check that canvases cannot enforce.
        LimitExceeded: a bound of ``limits`` was reached.
        TypeError: an argument is not a model, grammar, policy or sampler.
        ValueError: a number is out of range.
    """
    policy = _STATIC if policy is None else policy
    _check_kinds(model, policy, sampler)
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature must be positive and finite; found {temperature!r}; Dingo() takes the most probable canvas"
        )
    mask_of(model)
    constraint = canvas_constraint(grammar, model, limits)
    canvas_language(constraint, ambiguity="counted")  # refused before the prompt is encoded; kept for fill_steps
    steps = fill_steps(
        model,
        model.encode_prompt(prompt, chat=chat),
        constraint,
        canvas=canvas,
        policy=policy,
        sampler=sampler,
        temperature=temperature,
        block=block,
        reuse=reuse,
        seed=seed,
        stream=stream,
    )
    with Returning(steps) as run:
        for _ in run:
            pass
    return run.value


def fill_steps(  # noqa: PLR0913  as fill_canvas
    model: DiffusionModel,
    prompt_ids: Sequence[int],
    constraint: Constraint,
    *,
    canvas: int | ArrayLike | None = None,
    policy: CommitPolicy | None = None,
    sampler: CanvasSampler = _DINGO,
    temperature: float = 1.0,
    block: int | None = None,
    reuse: Reuse | None = None,
    seed: int = 0,
    stream: Callable[[Snapshot], object] | None = None,
) -> Generator[Snapshot, None, Result]:
    """Fill a canvas after the tokens of a prompt: ``fill_canvas`` for callers who iterate; the last one is the result.

    Yields the snapshots of each step of the policy, and one before the first pass; the model's caches are freed when
    the generator ends or is closed.

    Raises:
        GenerationError, ModelError, GrammarError, LimitExceeded: as ``fill_canvas``.
    """
    began = perf_counter()
    policy = _STATIC if policy is None else policy
    mask_token, language = mask_of(model), canvas_language(constraint, ambiguity="counted")
    work = counted(constraint.limits, limit="canvas_steps")
    with work:
        first = first_canvas(canvas, language, model, len(prompt_ids), mask_token, block)
    log = _CommitLog(first, stream)
    denoiser = model.start(prompt_ids)
    try:
        with work:
            run = CanvasRun(
                denoiser,
                mask_token,
                language,
                first,
                sampler=sampler,
                temperature=temperature,
                generator=np.random.Generator(np.random.PCG64(seed)),
                block=block,
                reuse=reuse,
                on_commit=log.record,
            )
        yield from log.taken()
        committer = policy.start()
        while free := len(run.free):
            with work:
                committer.advance(run)
            if len(run.free) >= free:
                raise GenerationError(
                    "commit policy",
                    "a step must commit at least one slot",
                    evidence=f"{policy!r} left all {free} free slots free",
                )
            yield from log.taken()
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(
            f"generation: interrupted with {int((log.canvas == FREE).sum())} of {len(first)} slots free; "
            f"the canvas so far is {shown_canvas(log.canvas, constraint.vocabulary)!r}"
        )
        raise
    finally:
        denoiser.close()
    return _result(run, log, constraint, policy, prompt_tokens=len(prompt_ids), began=began)


def shown_canvas(canvas: Canvas, vocabulary: Vocabulary) -> str:
    """Return a canvas as text, with a middle dot for each free slot; EOS and other special tokens are left out."""
    parts, pending = [], bytearray()
    for token in canvas.tolist():
        if token == FREE:
            parts += [pending.decode("utf-8", "replace"), "\N{MIDDLE DOT}"]
            pending.clear()
        else:
            pending += vocabulary.tokens[token]
    return "".join([*parts, pending.decode("utf-8", "replace")])


@final
class _CommitLog:
    """Keeps the commits of a run, and forwards them to ``stream``."""

    def __init__(self, canvas: Canvas, stream: Callable[[Snapshot], object] | None) -> None:
        self.canvas = canvas
        self.commits: list[tuple[int, ...]] = []
        self._stream = stream
        self._waiting: list[Snapshot] = []

    def taken(self) -> list[Snapshot]:
        """The snapshots since the last call."""
        snapshots, self._waiting = self._waiting, []
        return snapshots

    def record(self, snapshot: Snapshot) -> None:
        self.canvas = snapshot.canvas
        self._waiting.append(snapshot)
        if len(snapshot.committed):
            self.commits.append(tuple(snapshot.committed.tolist()))
        if self._stream is not None:
            self._stream(snapshot)


def _result(
    run: CanvasRun, log: _CommitLog, constraint: Constraint, policy: CommitPolicy, *, prompt_tokens: int, began: float
) -> Result:
    vocabulary = constraint.vocabulary
    tokens = output_tokens(run.canvas, vocabulary)
    has_stop = len(tokens) < len(run.canvas)
    cut_at = cut_position(constraint, tokens, len(run.canvas))
    log_cut(cut_at, len(tokens), len(run.canvas))
    steps = []
    for slot, token in enumerate([*tokens, None] if has_stop else tokens):
        was_forced, log_confidence = bool(run.was_forced[slot]), float(run.log_confidence[slot])
        if math.isnan(log_confidence):
            steps.append(Step(token, was_forced, 0.0, None))
        else:
            steps.append(Step(token, was_forced, log_confidence, float(run.log_prob[slot]) - log_confidence))
    stats = Stats.of_steps(
        steps,
        None,
        prompt_tokens=prompt_tokens,
        tokens=len(tokens),
        forwards=run.denoiser.forwards,
        seconds=Seconds(run.language_seconds, run.passes.seconds, perf_counter() - began),
    )
    return Result(
        data=vocabulary.decode(tokens),
        tokens=tuple(tokens),
        steps=tuple(steps),
        stats=replace(stats, drafted=run.drafted, accepted=run.accepted),
        grammar=constraint.grammar,
        vocabulary=vocabulary,
        canvas=Filling(
            tokens=tuple(run.canvas.tolist()),
            commits=tuple(log.commits),
            forced=tuple(np.flatnonzero(run.was_forced).tolist()),
            policy=policy,
            sampler=run.sampler,
            block=run.block_size,
        ),
        cut_at=cut_at,
    )


def _check_kinds(model: object, policy: object, sampler: object) -> None:
    if not isinstance(model, DiffusionModel):
        raise TypeError(f"fill_canvas: expected a DiffusionModel, found {type(model).__name__}; others use generate")
    if not isinstance(policy, CommitPolicy):
        raise TypeError(f"fill_canvas: expected a CommitPolicy, found {policy!r}; for instance Threshold(0.9)")
    if not isinstance(sampler, CanvasSampler):
        raise TypeError(f"fill_canvas: expected a CanvasSampler, found {sampler!r}; for instance Dingo()")
