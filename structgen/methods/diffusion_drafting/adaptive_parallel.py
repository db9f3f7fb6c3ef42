"""Adaptive parallel decoding: a small autoregressive model decides how much of a draft is committed.

Let ``q`` be the distribution of a slot given the slots to its left, under one pass and the language, and ``a`` that of
the small model after the same tokens. The verifier uses the mixture ``m(v) ~ q(v)^weight a(v)^(1 - weight)``, which
allows only tokens that the language allows. A draft is verified from left to right: a token is accepted if the mixture
selects it, too; the first rejection ends the commit. The leftmost token is always accepted.

"Selects" uses coupled sampling. The argmax of log-probabilities plus Gumbel noise is a sample, and two distributions
that share the noise select the same token more often the closer they are, while each remains exactly sampled. So the
tokens of the draft and of the mixture are compared under one noise, which is sampled after the draft, from its
distribution given the draft. A deterministic sampler needs no noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.step.context import Context
from structgen.decode.step.distribution import log_mass
from structgen.errors import VocabularyError
from structgen.methods.diffusion_drafting.canvas_draft import given_canvas

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised
    from structgen.models.protocol import LanguageModel, Logits, Prompt

__all__ = ["AdaptiveParallel", "mixture", "noise_given"]


@final
@dataclass(frozen=True, slots=True)
class AdaptiveParallel:
    """Commits from left to right as much of a completion as a small autoregressive model agrees with.

    A step takes one pass of the diffusion model, one of the small model over the draft, and a posterior for each
    verified token. Roles are reversed against speculative decoding, where the small model drafts: the output is not
    that of stepwise decoding, and its distribution is that of neither model.

    Without a grammar, the rule is the published one. With a grammar, the draft is one completion of the posterior, and
    each slot is verified by its distribution given the slots to its left, since the grammar makes them dependent.

    Attributes:
        model: the small model, with the same vocabulary.
        prompt: its prompt; usually the prompt of the canvas itself.
        weight: of the diffusion model in the mixture, from 0 to 1; with 1 every token is accepted.
        lookahead: the maximal number of tokens that a step drafts; None for all of the block.
        chat: whether a text becomes a message of the small model's chat template.

    Raises:
        ValueError: a number is out of range.
        VocabularyError: in ``advance``, the vocabularies differ.

    Source: Israel, Van den Broeck and Grover 2025, "Accelerating Diffusion LLMs via Adaptive Parallel Decoding"
    (arXiv 2506.00413); ``weight`` is its R, ``lookahead`` its M. Its cache for the committed prefix belongs to the
    model (see ``PrefixReuse``). Conditional distributions and noise sampled after the draft are ours.
    """

    model: LanguageModel
    prompt: Prompt = ""
    weight: float = 0.5
    lookahead: int | None = None
    chat: bool = True

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"AdaptiveParallel: weight must be in [0, 1]; found {self.weight!r}")
        if self.lookahead is not None and (not isinstance(self.lookahead, int) or self.lookahead < 1):
            raise ValueError(
                f"AdaptiveParallel: lookahead must be an integer of at least 1, or None; found {self.lookahead!r}"
            )

    def start(self) -> _Verifier:
        """See ``CommitPolicy.start``."""
        return _Verifier(self)


def mixture(log_q: NDArray[np.float64], log_a: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return the logits of the mixture; tokens without mass in one of the two distributions have none.

    Args:
        log_q: log-probabilities under the first distribution, minus infinity where the language forbids.
        log_a: under the second distribution, up to a constant.
        weight: exponent of the first distribution.
    """
    mixed = np.full(len(log_q), -np.inf)
    allowed = np.isfinite(log_q)
    mixed[allowed] = weight * log_q[allowed]
    if weight < 1:
        mixed[allowed] += (1 - weight) * log_a[allowed]
    return mixed


def noise_given(log_p: NDArray[np.float64], token: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Sample Gumbel noise given that ``token`` is the argmax of ``log_p + noise``.

    Args:
        log_p: log-probabilities, minus infinity for impossible tokens.
        token: a possible token.
        generator: of random numbers.

    Source: Maddison, Tarlow and Minka 2014, "A* Sampling" (arXiv 1411.0030): the largest sum has a standard Gumbel
        distribution, whichever token has it, and all others are Gumbel variables truncated there.
    """
    gumbel = generator.gumbel(size=len(log_p))
    top = gumbel[token]
    possible = np.isfinite(log_p)
    # log_p + noise = -log(e^-top + e^-(log_p + gumbel)), computed from the larger of the two exponents.
    noise = gumbel.copy()
    noise[possible] = -np.logaddexp(-top, -(log_p[possible] + gumbel[possible])) - log_p[possible]
    noise[token] = top - log_p[token]
    return noise


@final
class _Verifier:
    """The committer of ``AdaptiveParallel``."""

    def __init__(self, policy: AdaptiveParallel) -> None:
        self._policy = policy
        self._prompt: list[int] | None = None
        self._context: Context | None = None

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``.

        Raises:
            VocabularyError: the small model has another vocabulary.
            GenerationError: a model fails.
        """
        context = self._start(run)
        denoised = run.denoise()
        slots = run.candidates[: self._policy.lookahead]
        accepted = self._accepted(run, denoised, slots, context)
        run.commit(slots[:accepted], denoised.completion)
        run.drafted += len(slots) - 1
        run.accepted += accepted - 1
        if not len(run.free):
            context.close()

    def _accepted(self, run: CanvasRun, denoised: Denoised, slots: NDArray[np.intp], context: Context) -> int:
        """How many of the slots are accepted. Slots after EOS need no verification."""
        tokens = denoised.completion.tokens
        ends = np.flatnonzero(np.isin(tokens, run.language.vocabulary.eos))
        stop = int(ends[0]) + 1 if len(ends) else len(tokens)
        verified = slots[1:][slots[1:] < stop]
        if self._policy.weight == 1 or not len(verified):
            return len(slots)
        rows = self._logits(context, tokens, int(slots[0]), int(verified[-1]))
        canvas = run.canvas.copy()
        for before, slot in zip(slots, verified, strict=False):
            canvas[before] = tokens[before]
            posterior = run.language.posterior(given_canvas(denoised.distribution, canvas), tail=run.sampler.tail)
            with np.errstate(divide="ignore"):
                log_q = np.log(posterior.marginals(int(slot)))
            row = rows[slot - slots[0] - 1]
            mixed = mixture(log_q, (row - log_mass(row)) / run.temperature, self._policy.weight)
            if not run.sampler.deterministic:
                mixed += noise_given(log_q, int(tokens[slot]), run.generator)
            best = int(mixed.argmax())
            if best != tokens[slot] or mixed[best] == -np.inf:
                return int(np.searchsorted(slots, slot))
        return len(slots)

    def _start(self, run: CanvasRun) -> Context:
        model = self._policy.model
        if self._context is None:
            mine, theirs = model.vocabulary, run.language.vocabulary
            if mine is not theirs and mine.digest != theirs.digest:
                raise VocabularyError(
                    "AdaptiveParallel",
                    f"model {model.name!r} has another vocabulary than the canvas",
                    evidence=f"{mine!r}, not {theirs!r}",
                    remedy="use a small model with the tokenizer of the diffusion model",
                )
            self._prompt = model.encode_prompt(self._policy.prompt, chat=self._policy.chat)
            self._context = Context(model, self._prompt)
        return self._context

    def _logits(self, context: Context, tokens: NDArray[np.int32], first: int, last: int) -> Logits:
        """The small model's logits for the slots from after ``first`` to ``last``, in one pass over the draft."""
        prompt = self._prompt or []
        # Read up to the first slot first, so that one token is left to run, whatever the last step read.
        context.replace([*prompt, *tokens[:first].tolist()])
        context.prepare()
        context.append(tokens[first:last].tolist())
        return context.session.extend_all(context.unseen)[first - last :]
