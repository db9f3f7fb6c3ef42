"""``sample``: weighted outputs from a sampler of whole outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from structgen.decode.potentials import with_canonical
from structgen.decode.sampling.sampler_run import run_sampler, weighted_sampler, whole_speculation
from structgen.decode.sampling.smc import SMC
from structgen.decode.step.background import with_aio
from structgen.decode.step.context import Context, check_model, constraint_of
from structgen.decode.step.sampler import check_seed
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from structgen.decode.diffusion.trajectory import RevealOrder
    from structgen.decode.potentials import Potential
    from structgen.decode.potentials.potential import Score
    from structgen.decode.sampling.proposal import Proposal
    from structgen.decode.sampling.protocol import Samples, SequenceSampler
    from structgen.decode.speculative.speculation import AnyDrafter
    from structgen.decode.step.sampler import Multinomial
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["sample"]

_DEFAULT_SAMPLER: Final = SMC()
_MAX_TOKENS: Final = 256


@with_aio
def sample(  # noqa: PLR0913  as generate; each of them is a keyword with a default
    model: LanguageModel | DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    sampler: SequenceSampler | Proposal | Multinomial = _DEFAULT_SAMPLER,
    potentials: Sequence[Potential | Constraint | Score] = (),
    max_tokens: int | None = None,
    canvas: int | ArrayLike | None = None,
    order: RevealOrder | None = None,
    temperature: float | None = None,
    seed: int = 0,
    drafter: AnyDrafter = "auto",
    chat: bool = True,
    limits: Limits | None = None,
    canonical: bool = False,
) -> Samples:
    """Sample strings of ``grammar`` as answers to ``prompt``, each with a weight.

    The target is the model's distribution given that the output is a string of the grammar of at most ``max_tokens``
    tokens, times the potentials.  ``sampler.lossless`` says whether the weights are those of the target.  With
    ``canonical=True`` it is also given that the tokens are those that the tokenizer writes for the text: the
    log-evidence is then that of one token sequence for each string, the canonical one.

    For a diffusion model the target is the distribution of the canvases that the model fills without a grammar, given
    that they spell a string of the grammar: see ``structgen.decode.diffusion.entry``.

    Args:
        model: the language model, or a diffusion model.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint compiled for the model's vocabulary.
        sampler: samples the outputs.  ``AWRS()`` and ``Multinomial()`` write one output, whose ``log_weight`` is also
            the ``log_evidence``: the expectation of ``exp(log_weight)`` times ``1{output = x}`` is the target of ``x``,
            for every ``x``.  Several at once: ``SMC(n, ess_threshold=0, proposal=AWRS())``.
        potentials: factors of the target: potentials, constraints, or functions of the text.
        max_tokens: maximum number of tokens of an output, EOS not counted; 256 by default.
        canvas: for a diffusion model: the number of slots, or the canvas itself, in place of ``max_tokens``.
        order: for a diffusion model: the order in which slots are revealed, by default one by one in any order.
        temperature: for a diffusion model: the target is its distribution at this temperature; 1 by default.
        seed: seed of the random numbers; the same seed gives the same samples.
        drafter: proposes draft tokens, as in ``generate``.  Text that the grammar dictates is drafted with every
            drafter; ``"auto"`` drafts more only while a single particle is written.  Samples, weights and estimates are
            the same with every drafter, and with None.
        chat: whether a text becomes a message of the model's chat template.
        limits: limits for compiling a grammar; a constraint has its own.
        canonical: only outputs whose tokens are those that the tokenizer writes for their text, as in ``generate``.

    Returns:
        The samples; none if all weights are zero.

    Raises:
        BudgetError, GenerationError, VocabularyError, GrammarError, LimitExceeded, ModelError: as ``generate``.
        GenerationError: also if a potential raises an error, returns no score, or breaks its contract.
        ValueError: an argument belongs to the other kind of model; or the sampler chooses tokens without weights, as
            ``Greedy()`` and ``Multinomial(temperature=...)`` do.
        ArgumentError: as ``generate``.
    """
    check_model(model, "sample")
    check_seed(seed)
    whole = weighted_sampler(sampler)
    if isinstance(model, DiffusionModel):
        canvas_sampler = _canvas_sampler(model, sampler, potentials, drafter, canonical=canonical)
        # Imported here, so that autoregressive sampling does not load canvases.
        from structgen.decode.diffusion.entry import fill_smc

        return fill_smc(
            model,
            prompt,
            grammar,
            max_tokens=max_tokens,
            canvas=canvas,
            sampler=canvas_sampler,
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
    speculation = whole_speculation(drafter, whole)
    constraint = constraint_of(grammar, model, limits)
    max_tokens = _MAX_TOKENS if max_tokens is None else max_tokens
    potentials = with_canonical(potentials, constraint, max_tokens, canonical=canonical)
    with Context(model, model.encode_prompt(prompt, chat=chat)) as context:
        return run_sampler(
            whole,
            context,
            constraint,
            potentials=potentials,
            max_tokens=max_tokens,
            generator=np.random.Generator(np.random.PCG64(seed)),
            speculation=speculation,
        )


def _canvas_sampler(
    model: DiffusionModel,
    sampler: SequenceSampler | Proposal | Multinomial,
    potentials: Sequence[Potential | Constraint | Score],
    drafter: AnyDrafter,
    *,
    canonical: bool,
) -> SMC:
    """Return the sampler; refuse what only autoregressive models take."""
    if canonical:
        raise ValueError(
            f"canonical=True is not for model {model.name!r}, which fills a canvas; take an autoregressive model"
        )
    if potentials:
        raise ValueError(
            f"potentials score prefixes of a text, and model {model.name!r} fills a canvas everywhere at once; "
            "express the rule in the grammar, or take an autoregressive model"
        )
    if drafter not in ("auto", None):
        raise ValueError(f"drafter={drafter!r:.60} is not for model {model.name!r}, which fills a canvas; leave it out")
    if not isinstance(sampler, SMC):
        raise ValueError(
            f"sampler={sampler!r:.60} is not for model {model.name!r}, which fills a canvas; take SMC(), whose "
            "outputs have weights"
        )
    return sampler
