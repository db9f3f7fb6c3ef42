"""``sample``: outputs with weights, drawn by a sampler of whole outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from structgen.decode.sampling.sampler_run import run_sampler, whole_speculation
from structgen.decode.sampling.smc import SMC
from structgen.decode.step.context import Context, constraint_of
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from structgen.decode.diffusion.trajectory import RevealOrder
    from structgen.decode.potentials import Potential
    from structgen.decode.potentials.potential import Score
    from structgen.decode.sampling.protocol import Samples, SequenceSampler
    from structgen.decode.speculative.speculation import AnyDrafter
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["sample"]

_DEFAULT_SAMPLER: Final = SMC()


def sample(  # noqa: PLR0913  as generate; each of them is a keyword with a default
    model: LanguageModel | DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    sampler: SequenceSampler = _DEFAULT_SAMPLER,
    potentials: Sequence[Potential | Constraint | Score] = (),
    max_tokens: int | None = None,
    canvas: int | ArrayLike | None = None,
    order: RevealOrder | None = None,
    temperature: float | None = None,
    seed: int = 0,
    drafter: AnyDrafter = "auto",
    chat: bool = True,
    limits: Limits | None = None,
) -> Samples:
    """Sample strings of ``grammar`` as answers to ``prompt``, each with a weight.

    The target is the model's distribution given that the output is a member of at most ``max_tokens`` tokens, times
    what the potentials say of it.  ``sampler.lossless`` tells whether the weights are those of the target.

    For a diffusion model it is the distribution of the canvases that the model fills by itself, given that they spell a
    member: see ``structgen.decode.diffusion.entry``.

    Args:
        model: the language model, or a diffusion model.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint that was compiled for the model's vocabulary.
        sampler: how outputs are drawn.
        potentials: what else outputs are worth: potentials, constraints, or functions of the text.
        max_tokens: the most tokens that an output may have, EOS not counted; 256 by default.
        canvas: of a diffusion model: how many slots there are, or the canvas itself, in place of ``max_tokens``.
        order: of a diffusion model: which slots are revealed when, by default one by one in any order.
        temperature: of a diffusion model, whose distribution at this temperature is the target; 1 by default.
        seed: of the random numbers; the same seed gives the same samples.
        drafter: what draft tokens tokens, so that one forward pass tells several, as in ``generate``.  What the
            grammar dictates is drafted with any of them; ``"auto"`` asks for more only while one particle is written,
            where it pays.  Samples, weights and estimates are the same with all of them, and with None.
        chat: whether a text becomes a message of the model's chat template.
        limits: for compiling a grammar; a constraint has its own.

    Returns:
        The samples; none where all weights are zero.

    Raises:
        BudgetError, GenerationError, VocabularyError, GrammarError, LimitExceeded, ModelError: as ``generate``.
        GenerationError: also where a potential raises an error, returns no score, or breaks its contract.
        ValueError: an argument belongs to the other kind of model.
        TypeError: ``drafter`` is none.
    """
    if isinstance(model, DiffusionModel):
        if potentials:
            raise ValueError(
                f"potentials are asked about prefixes of a text, and model {model.name!r} fills a canvas everywhere "
                "at once; say it in the grammar, or take an autoregressive model"
            )
        if drafter not in ("auto", None):
            raise ValueError(
                f"drafter={drafter!r:.60} is not for model {model.name!r}, which fills a canvas; leave it out"
            )
        if not isinstance(sampler, SMC):
            raise ValueError(
                f"sampler={sampler!r:.60} is not for model {model.name!r}, which fills a canvas; take SMC(), whose "
                "outputs have weights"
            )
        # Canvases are sampled by means of this package, so it cannot import them when it is imported itself.
        from structgen.decode.diffusion.entry import sample_canvases

        return sample_canvases(
            model,
            prompt,
            grammar,
            max_tokens=max_tokens,
            canvas=canvas,
            sampler=sampler,
            order=order,
            temperature=1.0 if temperature is None else temperature,
            seed=seed,
            chat=chat,
            limits=limits,
        )
    for name, value in {"canvas": canvas, "order": order, "temperature": temperature}.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r:.60} is not for model {model.name!r}, which writes token by token; leave it out"
            )
    speculation = whole_speculation(drafter, sampler)
    constraint = constraint_of(grammar, model, limits)
    with Context(model, model.encode_prompt(prompt, chat=chat)) as context:
        return run_sampler(
            sampler,
            context,
            constraint,
            potentials=potentials,
            max_tokens=256 if max_tokens is None else max_tokens,
            generator=np.random.Generator(np.random.PCG64(seed)),
            speculation=speculation,
        )
