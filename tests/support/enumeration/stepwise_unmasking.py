"""Stepwise decoding of canvases, beside a policy that must give the same result."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

import structgen as sg
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.canvas_run import CanvasRun
from structgen.decode.diffusion.commit_policy import CommitPolicy, Committer, Static
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage, CanvasSampler, Dingo
from structgen.engine import Vocabulary, compile
from structgen.methods.diffusion_drafting.canvas_draft import DraftCommitter
from structgen.models.diffusion import DiffusionModel, HashDiffusion

__all__ = ["LETTERS", "a_run", "check_lossless", "fill", "pattern"]

EOS, MASK = 0, 4
LETTERS = Vocabulary([b"", b"a", b"b", b"c", b""], eos=[EOS], special={MASK: "<mask>"})
JOINTS = Vocabulary(
    [b"", b"{", b"}", b'"', b":", b",", b"a", b"b", b"1", b"2", b'{"', b'":', b"", b',"', b"true", b'"a"'],
    eos=[EOS],
    special={12: "<mask>"},
)
PIECES = ("[ab]", "(ab|c)", "a{1,3}", "b?c", "(c|ba){1,2}", "[abc]{2}", "(a|bb)", "(abc|acb)?")
DOCUMENTS = r'\{"(a|b)":(1|2|12|true)(,"(a|b|ab)":(1|22|\{"a":1\}))?\}'


def pattern(rng: random.Random) -> str:
    """A regular expression over a, b and c."""
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(2, 5)))


def a_run(
    model: DiffusionModel,
    language: CanvasLanguage,
    slots: int | Canvas,
    *,
    sampler: CanvasSampler | None = None,
    temperature: float = 1.0,
    block: int | None = None,
) -> tuple[CanvasRun, list[list[int]]]:
    """A run, and the list that records its canvases."""
    seen: list[list[int]] = []
    canvas = np.full(slots, FREE, dtype=np.int32) if isinstance(slots, int) else slots
    run = CanvasRun(
        model.start([]),
        model.mask_token,
        language,
        canvas,
        sampler=sampler or Dingo(),
        temperature=temperature,
        generator=np.random.default_rng(0),
        block=block,
        on_commit=lambda snapshot: seen.append(snapshot.canvas.tolist()),
    )
    return run, seen


def fill(run: CanvasRun, policy: CommitPolicy) -> Committer:
    """Fill a canvas; return the committer."""
    committer = policy.start()
    while len(run.free):
        committer.advance(run)
    return committer


def check_lossless(seed: int, policies: Callable[[random.Random], tuple[CommitPolicy, int]]) -> tuple[int, int]:
    """Check that the policy and stepwise decoding visit the same canvases; return the forward passes of both."""
    rng = random.Random(seed)
    vocabulary, text, slots = LETTERS, pattern(rng), rng.randint(5, 12)
    if seed % 6 == 0:
        vocabulary, text, slots = JOINTS, DOCUMENTS, rng.randint(10, 12)
    language = canvas_language(compile(sg.regex(text), vocabulary))
    slots = max(slots, language.shortest)
    model = HashDiffusion(vocabulary, seed=seed, context=rng.choice((0.0, 0.1, 0.5, 1.0)))
    options = {"temperature": rng.choice((0.1, 0.7, 1.0, 3.0)), "block": rng.choice((None, None, 1, 3, 8))}
    policy, per_step = policies(rng)
    wanted, stepwise = a_run(model, language, slots, **options)
    fill(wanted, Static(per_step=per_step))
    run, seen = a_run(model, language, slots, **options)
    committer = fill(run, policy)
    assert seen == stepwise
    assert isinstance(committer, DraftCommitter)
    assert committer.forwards == run.denoiser.forwards <= max(1, wanted.denoiser.forwards)
    assert committer.canvases >= committer.forwards
    assert 0 <= run.accepted <= run.drafted
    # The reports about each slot are the same, too.
    np.testing.assert_allclose(run.log_confidence, wanted.log_confidence, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(run.log_prob, wanted.log_prob, rtol=1e-9, atol=1e-12)
    assert run.was_forced.tolist() == wanted.was_forced.tolist()
    return run.denoiser.forwards, wanted.denoiser.forwards
