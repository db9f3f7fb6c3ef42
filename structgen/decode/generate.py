"""``generate``: one complete output of a model within a grammar.  A token's walk through the loop begins here.

The settings are checked, the grammar is compiled, and the prompt becomes a ``Context``.  ``start_generation`` makes the
``Generation`` (``autoregressive/loop.py``), for callers who iterate over its chunks themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, TypeVar, Unpack, cast

from structgen.decode.autoregressive.loop import AnyPotential, Autoregressive, Chunk, Generation
from structgen.decode.diffusion.commit_policy import Unmasking
from structgen.decode.potentials import with_canonical
from structgen.decode.speculative.speculation import AnyDrafter, as_speculation
from structgen.decode.step.background import with_aio
from structgen.decode.step.context import Context, check_model, check_start, constraint_of
from structgen.decode.step.sampler import Greedy, Multinomial, Sampler, check_seed, wrong_sampler
from structgen.errors import ArgumentError, found, meant, number_of
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from structgen.decode.autoregressive.output import Healing, Writer
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.decode.diffusion.forward_pass import Reuse
    from structgen.decode.diffusion.posterior import Canvas, CanvasSampler
    from structgen.decode.sampling import SMC, Proposal, SequenceSampler
    from structgen.decode.step.result import Result
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["AnyCanvasSampler", "AnyModel", "AnySampler", "Decoding", "DecodingKeywords", "generate", "start_generation"]

AnySampler: TypeAlias = "Sampler | SequenceSampler | Proposal"
"""A sampler of tokens, or of whole outputs."""

AnyCanvasSampler: TypeAlias = "CanvasSampler | SMC"
"""A sampler of completions of a canvas, step by step, or of whole trajectories."""

AnyModel: TypeAlias = "LanguageModel | DiffusionModel"
"""A model that writes token by token, or one that fills canvases."""

Decoding: TypeAlias = Autoregressive | Unmasking
"""The settings of one kind of model."""

_GREEDY: Final = Greedy()
_MAX_TOKENS: Final = 256
_D = TypeVar("_D", Autoregressive, Unmasking)


class DecodingKeywords(TypedDict, total=False):
    """Keywords of ``generate`` that stand for a field of ``decoding``."""

    drafter: AnyDrafter
    jump_forward: bool
    score_ending: bool
    potentials: Sequence[AnyPotential]
    heal: bool
    canonical: bool
    canvas: int | Canvas | None
    policy: CommitPolicy | None
    temperature: float | None
    block: int | None
    reuse: Reuse | None


_REMEDIES: Final = {
    "canvas": "bound the output with max_tokens",
    "policy": "only diffusion models take a commit policy",
    "temperature": "write sampler=sg.Multinomial(temperature=...)",
    "block": "tokens are written from left to right anyway",
    "reuse": "its key-value cache is exact",
    "drafter": "diffusion models draft by a commit policy, such as policy=FreeDave()",
    "jump_forward": "forced slots cost no forward pass",
    "score_ending": "every slot is scored in the pass that fills it",
    "heal": "no token can span the prompt and a canvas, which are separate",
    "potentials": "say it in the grammar (regular ones can be intersected with &), or take an autoregressive model",
    "canonical": "take an autoregressive model: a canvas is not written from left to right",
}
"""Why a keyword does not fit the other kind of model, or what to do instead."""


def _streamed(generation: Generation, stream: Callable[[Chunk], object] | None) -> Result:
    """Write an output to its end, and hand its chunks to ``stream``."""
    try:
        for chunk in generation:
            if stream is not None:
                stream(chunk)
    except KeyboardInterrupt as interrupt:
        text = generation.data.decode("utf-8", "replace")
        interrupt.add_note(
            f"generation: interrupted after {number_of(len(generation.tokens), 'token')}; the output so far is {text!r}"
        )
        raise
    return generation.result()


def start_generation(  # noqa: PLR0913  as generate
    context: Context,
    constraint: Constraint,
    *,
    max_tokens: int,
    sampler: AnySampler = _GREEDY,
    potentials: Sequence[AnyPotential] = (),
    seed: int = 0,
    drafter: AnyDrafter = "auto",
    jump_forward: bool = True,
    score_ending: bool = False,
    alternatives: int = 0,
    healing: Healing | None = None,
    canonical: bool = False,
) -> Generation:
    """Check that an output can be completed, and return its ``Generation``: ``generate`` for callers who iterate.

    ``context`` holds the prompt, at least one token; the caller closes it.  ``constraint`` is compiled for the model's
    vocabulary.  ``alternatives`` is how many other tokens each step records in ``Step.alternatives``.  ``healing`` is
    what ``heal`` returned with context and constraint.  The other arguments are those of ``generate``.

    Raises:
        BudgetError: the shortest string of the grammar takes more than ``max_tokens``.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context.
        VocabularyError: the constraint belongs to another vocabulary.
        ArgumentError: ``sampler`` is no sampler, ``drafter`` no drafter, or ``seed`` no number; or as
            ``with_canonical``, if ``canonical``.
        GrammarError: as ``with_canonical``.
    """
    chooser: Sampler
    writer: Writer | None = None
    check_seed(seed)
    if isinstance(sampler, Sampler) and not isinstance(sampler, type):
        chooser, speculation = sampler, as_speculation(drafter)
    else:
        # Imported here: most outputs are written token by token.
        from structgen.decode.sampling import Proposal, SequenceSampler
        from structgen.decode.sampling.sampler_run import output_writer

        if isinstance(sampler, type) or not isinstance(sampler, (SequenceSampler, Proposal)):
            raise wrong_sampler("sampler", sampler, expected="a sampler", example="sg.Greedy()")
        chooser, speculation = Multinomial(), None
        writer = output_writer(sampler, context, constraint, max_tokens, drafter, has_drafts=jump_forward)
    check_start(context.model, len(context), constraint, max_tokens)
    return Generation(
        context,
        constraint,
        max_tokens=max_tokens,
        sampler=chooser,
        writer=writer,
        seed=seed,
        jump_forward=jump_forward,
        score_ending=score_ending,
        alternatives=alternatives,
        potentials=with_canonical(potentials, constraint, max_tokens, canonical=canonical),
        speculation=speculation,
        healing=healing,
    )


@with_aio
def generate(  # noqa: PLR0913  the public contract: ten settings, each a keyword with a default
    model: AnyModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    max_tokens: int | None = None,
    sampler: AnySampler | AnyCanvasSampler | None = None,
    seed: int = 0,
    stream: Callable[[Chunk], object] | Callable[[Snapshot], object] | None = None,
    limits: Limits | None = None,
    chat: bool = True,
    decoding: Decoding | None = None,
    **keywords: Unpack[DecodingKeywords],
) -> Result:
    """Let ``model`` answer ``prompt`` with a string of ``grammar``.

    *Autoregressive models* (``LanguageModel``).  With a sampler of tokens (``Greedy``, ``Multinomial``) the target is
    locally constrained decoding: at each step the model's distribution is restricted to the tokens after which the
    output can still be completed, renormalised, and handed to the sampler.  This is not the model's distribution given
    that the output belongs to the grammar; ``Result.log_z`` is the log of the probability that the masks kept.
    Samplers of whole outputs (``SMC`` and others) state their own target; ``sample`` returns their weighted samples.

    *Diffusion models* (``DiffusionModel``).  Each forward pass gives every free slot a distribution.  The sampler takes
    one completion that spells a string of the grammar: the most probable one (``Dingo``), or an exact sample
    (``Posterior``).  The commit policy says which of its slots are committed before the next pass.  ``SMC`` samples
    whole trajectories instead; their weights correct the bias of conditioning step by step.

    A setting of the other kind of model raises an error.

    *Token healing* (``heal=True``, autoregressive models).  The last token of the prompt is taken off, and the output
    must begin with its bytes; so a token may span prompt and output.  The target is that of the sampler with this
    prompt and these strings: for a sampler of whole outputs that is lossless, the model's distribution after the prompt
    without its last token, given that the tokens spell its bytes and then a string of the grammar.  ``Result.tokens``,
    ``steps`` and scores are those of all these tokens, at most one more than ``max_tokens``; text, value, captures and
    streamed texts leave the bytes out.  A prompt that ends with a special token is left as it is.

    Args:
        model: the language model, of either kind.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint compiled for the model's vocabulary.
        max_tokens: the maximum number of tokens of the output, EOS not counted.  The output is complete within them.
            By default 256; for a diffusion model it bounds the slots where ``canvas`` is not given.
        sampler: how tokens, whole outputs or canvases are chosen; ``Greedy()``, and ``Dingo()`` for a diffusion model.
        seed: seed of the sampler's random numbers; the same seed gives the same output.
        stream: called with each piece of the output, a ``Chunk``, as soon as it is final; for a diffusion model with
            a ``Snapshot`` of the canvas after each commit, and once before the first pass.
        limits: limits for compiling a grammar; a constraint has its own.
        chat: whether a text becomes a message of the model's chat template.
        decoding: the settings of one kind of model: ``Autoregressive(drafter, jump_forward, score_ending, potentials,
            heal, canonical)`` or ``Unmasking(canvas, policy, temperature, block, reuse)``.
        **keywords: fields of ``decoding`` by name, in its place: ``drafter=None`` is
            ``decoding=Autoregressive(drafter=None)``.

    Raises:
        BudgetError: the shortest string of the grammar takes more than ``max_tokens``; before any forward pass.
        GenerationError: prompt and output do not fit the model's context, before any forward pass; the canvas cannot be
            completed; or the model returned no usable logits.
        ValueError: a setting belongs to the other kind of model, or is out of range.
        ArgumentError: an argument has the wrong type: a model's name, a schema, a sampler's name.
        TypeError: there is no such keyword.
        VocabularyError: the constraint belongs to another vocabulary, or the tokens cannot spell the grammar.
        GrammarError: the grammar does not compile, or no automaton of a canvas can be made of it.
        LimitExceeded: a bound of ``limits`` was reached.  After tokens it has the output so far, which is not complete.
        ModelError: the prompt cannot be encoded.
    """
    check_model(model, "generate")
    if not (stream is None or callable(stream)):
        raise ArgumentError("stream", "expected a function", evidence=found(stream), remedy="pass stream=print")
    if isinstance(model, DiffusionModel):
        check_seed(seed)
        unmasking = _settings(Unmasking(), decoding, keywords, model)
        # Imported here, so that autoregressive decoding does not load canvases.
        from structgen.decode.diffusion.entry import write_canvas

        return write_canvas(
            model,
            prompt,
            grammar,
            replace(unmasking, stream=cast("Callable[[Snapshot], object] | None", stream or unmasking.stream)),
            max_tokens=max_tokens,
            sampler=_canvas_sampler(sampler, model),
            seed=seed,
            chat=chat,
            limits=limits,
        )
    settings = _settings(Autoregressive(), decoding, keywords, model)
    if sampler is not None and not isinstance(sampler, Sampler):
        _refuse_canvas_sampler(sampler, model)
    constraint = constraint_of(grammar, model, limits, heeds_temperatures=True)
    tokens: Sequence[int] = model.encode_prompt(prompt, chat=chat)
    max_tokens = _MAX_TOKENS if max_tokens is None else max_tokens
    healing, potentials = None, settings.potentials
    if settings.heal:
        from structgen.decode.autoregressive.output import heal

        if potentials or settings.canonical:
            other = "potentials=" if potentials else "canonical=True"
            raise ValueError(
                f"{other} and heal=True are both given, and the first would judge the rewritten end of the prompt; "
                "leave one out, or say it in the grammar"
            )
        check_start(model, len(tokens), constraint, max_tokens)
        tokens, constraint, healing = heal(tokens, constraint)
        max_tokens += healing is not None
    with Context(model, tokens) as context:
        generation = start_generation(
            context,
            constraint,
            max_tokens=max_tokens,
            sampler=_GREEDY if sampler is None else cast("AnySampler", sampler),
            potentials=potentials,
            seed=seed,
            drafter=settings.drafter,
            jump_forward=settings.jump_forward,
            score_ending=settings.score_ending,
            healing=healing,
            canonical=settings.canonical,
        )
        return _streamed(generation, cast("Callable[[Chunk], object] | None", stream))


def _settings(default: _D, decoding: Decoding | None, keywords: Mapping[str, Any], model: AnyModel) -> _D:
    """Return the settings for this kind of model, from ``decoding`` or from the keywords that stand for its fields.

    Raises:
        ValueError: a setting belongs to the other kind of model, or ``decoding`` and a keyword are both given.
        TypeError: there is no such keyword.
    """
    kind = type(default).__name__
    what = "fills a canvas" if isinstance(default, Unmasking) else "writes token by token"
    if decoding is not None and not isinstance(decoding, type(default)):
        raise ValueError(
            f"decoding={decoding!r:.60} is not for model {model.name!r}, which {what}; pass decoding={kind}(...)"
        )
    names = {field.name for field in fields(default)} - {"stream"}
    own: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in _REMEDIES:
            raise TypeError(
                f"generate() got an unexpected keyword argument {name!r}; "
                f"{meant(name, (*generate.__annotations__, *_REMEDIES)) or 'leave it out'}"
            )
        if name in names:
            if value is not None or name == "drafter":
                own[name] = value
        elif not _is_default(name, value):
            raise ValueError(
                f"{name}={value!r:.60} is not for model {model.name!r}, which {what}; leave it out; {_REMEDIES[name]}"
            )
    if own and decoding is not None:
        name, value = next(iter(own.items()))
        raise ValueError(f"{name}={value!r:.60} and decoding= are both given; write decoding={kind}({name}=...)")
    return replace(decoding or default, **own)


def _is_default(name: str, value: object) -> bool:
    """Whether a keyword has its default value."""
    if name == "drafter":
        return value is None or value == "auto"
    if name == "jump_forward":
        return bool(value)
    return value is None or value is False or (name == "potentials" and not value)


def _refuse_canvas_sampler(sampler: object, model: LanguageModel) -> None:
    from structgen.decode.diffusion.posterior import CanvasSampler

    if isinstance(sampler, CanvasSampler):
        raise ValueError(
            f"sampler={sampler!r:.60} is not for model {model.name!r}, which writes token by token; "
            "take Greedy(), Multinomial(), or a sampler of whole outputs such as SMC()"
        )


def _canvas_sampler(sampler: AnySampler | AnyCanvasSampler | None, model: DiffusionModel) -> AnyCanvasSampler:
    """The sampler of a diffusion model.

    Raises:
        ValueError: it chooses tokens one by one.
    """
    from structgen.decode.diffusion.posterior import CanvasSampler, Dingo
    from structgen.decode.sampling import SMC

    if sampler is None:
        return Dingo()
    if isinstance(sampler, (CanvasSampler, SMC)):
        return sampler
    raise ValueError(
        f"sampler={sampler!r:.60} is not for model {model.name!r}, which fills a canvas; "
        "take Dingo(), the most probable completion, Posterior(), a sample, or SMC(), samples of whole trajectories"
    )
