"""``generate``: one complete output of a model within a grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from structgen.decode.autoregressive import AnyPotential, AnySampler, write_tokens
from structgen.decode.context import Context
from structgen.decode.diffusion.canvas_sampler import CanvasSampler, Dingo
from structgen.decode.sampler import Greedy
from structgen.decode.sampling import SMC
from structgen.decode.start import constraint_of
from structgen.models.diffusion.protocol import DiffusionModel

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.decode.diffusion.posterior import Canvas
    from structgen.decode.diffusion.reuse import Reuse
    from structgen.decode.generation import Chunk
    from structgen.decode.result import Result
    from structgen.decode.speculative.speculation import AnyDrafter
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["AnyCanvasSampler", "AnyModel", "generate"]

AnyCanvasSampler: TypeAlias = CanvasSampler | SMC
"""What takes completions of canvases step by step, or draws whole trajectories."""

AnyModel: TypeAlias = "LanguageModel | DiffusionModel"
"""What writes token by token, or fills canvases."""

_GREEDY: Final = Greedy()
_DINGO: Final = Dingo()
_MAX_TOKENS: Final = 256

_OF_CANVASES: Final = {
    "canvas": "bound the output with max_tokens",
    "policy": "which tokens are drafted and kept is a question of canvases",
    "temperature": "write sampler=Multinomial(temperature=...)",
    "block": "tokens are written from left to right anyway",
    "reuse": "its key-value cache is exact",
}
_OF_TOKENS: Final = {
    "drafter": "drafts of canvases are policies: policy=FreeDave() and its like",
    "jump_forward": "slots that the grammar forces cost no forward pass",
    "score_ending": "every slot is scored in the pass that fills it",
    "potentials": "say it in the grammar (regular ones can be intersected with &), or take an autoregressive model",
}


def generate(  # noqa: PLR0913  the public contract; each of them is a keyword with a default
    model: AnyModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    max_tokens: int | None = None,
    sampler: AnySampler | AnyCanvasSampler | None = None,
    potentials: Sequence[AnyPotential] = (),
    seed: int = 0,
    drafter: AnyDrafter = "auto",
    stream: Callable[[Chunk], object] | Callable[[Snapshot], object] | None = None,
    jump_forward: bool = True,
    score_ending: bool = False,
    canvas: int | Canvas | None = None,
    policy: CommitPolicy | None = None,
    temperature: float | None = None,
    block: int | None = None,
    reuse: Reuse | None = None,
    chat: bool = True,
    limits: Limits | None = None,
) -> Result:
    """Let ``model`` answer ``prompt`` with a member of ``grammar``.

    *A model that writes token by token* (``LanguageModel``).  With a sampler of tokens (``Greedy``, ``Multinomial``)
    the target is locally constrained decoding: at each step the model's law is restricted to the tokens after which the
    output can still be completed, renormalised, and handed to the sampler.  This is not the model's law given that its
    output belongs to the grammar; ``Result.log_z`` tells how much probability was removed.  Samplers of whole outputs
    (``SMC`` and its like) say themselves what their target is; ``sample`` returns all that they draw, with weights.

    *A model that fills a canvas* (``DiffusionModel``).  Each forward pass gives every free slot a law.  The sampler
    takes one completion that spells a member of the grammar: the most probable one (``Dingo``), or one drawn exactly
    (``Posterior``); the policy says which of its slots are committed before the model is asked again.  ``SMC`` draws
    whole trajectories instead, whose weights correct what conditioning step by step does to the law.

    Arguments of the other kind of model are refused, not ignored.

    Args:
        model: the language model, of either kind.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint that was compiled for the model's vocabulary.
        max_tokens: the most tokens that the output may have, EOS not counted.  The output is complete within them.  By
            default 256; for a diffusion model it bounds the slots where ``canvas`` says nothing.
        sampler: how tokens, whole outputs or canvases are chosen; ``Greedy()``, and ``Dingo()`` for a diffusion model.
        potentials: what else the output has to fulfil: potentials, constraints, or functions of its text.  Samplers of
            tokens withhold what they forbid, and go back where nothing is left; scores need a sampler of outputs.
        seed: of the sampler's random numbers; the same seed gives the same output.
        drafter: what guesses tokens, so that one forward pass tells several: a drafter, or a ``Speculation`` with all
            that can be said about its use; None for nothing.  ``"auto"`` takes what costs nothing to ask, and only
            where it pays.  The output is the same with all of them, seed for seed, but for drafters that draw their
            tokens from a law of their own: with those it has the same law.
        stream: called with each piece of the output, a ``Chunk``, as soon as it is certain; for a diffusion model with
            a ``Snapshot`` of the canvas after each commit, and once before the first pass.
        jump_forward: take forced tokens without forward passes of their own; the output is the same without.
        score_ending: spend a forward pass on forced steps at the end of the output, so that ``log_z`` covers them.
        canvas: how many slots there are, or the canvas itself with some of them fixed; None lets the grammar say.
        policy: which slots of a completion are committed.
        temperature: of the law of each slot, 1 by default.
        block: slots that are filled before those right of them; None is the whole canvas.
        reuse: which slots each pass runs; None runs all.
        chat: whether a text becomes a message of the model's chat template.
        limits: for compiling a grammar; a constraint has its own.

    Raises:
        BudgetError: the shortest member of the grammar takes more than ``max_tokens``; before any forward pass.
        GenerationError: prompt and output do not fit the model's context, before any forward pass; the canvas cannot be
            completed; or the model returned no usable logits.
        ValueError: an argument belongs to the other kind of model, or is out of range.
        TypeError: ``drafter`` is none.
        VocabularyError: the constraint belongs to another vocabulary, or the tokens cannot spell the grammar.
        GrammarError: the grammar does not compile, or no automaton of a canvas can be made of it.
        LimitExceeded: a bound of ``limits`` was reached.
        ModelError: the prompt cannot be encoded.
    """
    of_canvases = {"canvas": canvas, "policy": policy, "temperature": temperature, "block": block, "reuse": reuse}
    if isinstance(model, DiffusionModel):
        of_tokens = {
            "drafter": None if drafter == "auto" else drafter,
            "jump_forward": None if jump_forward else False,
            "score_ending": score_ending or None,
            "potentials": tuple(potentials) or None,
        }
        _refuse(of_tokens, _OF_TOKENS, model, "fills a canvas")
        # Imported here, so that autoregressive decoding does not pay for canvases.
        from structgen.decode.diffusion.writing import write_canvas

        return write_canvas(
            model,
            prompt,
            grammar,
            max_tokens=max_tokens,
            canvas=canvas,
            policy=policy,
            sampler=_canvas_sampler(sampler, model),
            temperature=1.0 if temperature is None else temperature,
            block=block,
            reuse=reuse,
            seed=seed,
            stream=cast("Callable[[Snapshot], object] | None", stream),
            chat=chat,
            limits=limits,
        )
    _refuse(of_canvases, _OF_CANVASES, model, "writes token by token")
    if isinstance(sampler, CanvasSampler):
        raise ValueError(
            f"sampler={sampler!r:.60} is not for model {model.name!r}, which writes token by token; "
            "take Greedy(), Multinomial(), or a sampler of whole outputs such as SMC()"
        )
    constraint = constraint_of(grammar, model, limits, heeds_temperatures=True)
    with Context(model, model.encode_prompt(prompt, chat=chat)) as context:
        return write_tokens(
            context,
            constraint,
            max_tokens=_MAX_TOKENS if max_tokens is None else max_tokens,
            sampler=_GREEDY if sampler is None else sampler,
            potentials=potentials,
            seed=seed,
            drafter=drafter,
            stream=cast("Callable[[Chunk], object] | None", stream),
            jump_forward=jump_forward,
            score_ending=score_ending,
        )


def _refuse(given: Mapping[str, Any], remedies: Mapping[str, str], model: AnyModel, what: str) -> None:
    """Refuse the first argument that is given although it belongs to the other kind of model."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r:.60} is not for model {model.name!r}, which {what}; leave it out: {remedies[name]}"
            )


def _canvas_sampler(sampler: AnySampler | AnyCanvasSampler | None, model: DiffusionModel) -> AnyCanvasSampler:
    """The sampler of a diffusion model.

    Raises:
        ValueError: it chooses tokens one by one.
    """
    if sampler is None:
        return _DINGO
    if isinstance(sampler, (CanvasSampler, SMC)):
        return sampler
    raise ValueError(
        f"sampler={sampler!r:.60} is not for model {model.name!r}, which fills a canvas; "
        "take Dingo(), the most probable completion, Posterior(), a draw, or SMC(), draws over whole trajectories"
    )
