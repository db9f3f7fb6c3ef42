"""``infill``: fill the holes of a text so that the whole is a string of a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from structgen.decode.diffusion.canvas import regular_language
from structgen.decode.diffusion.posterior import CanvasSampler, Dingo
from structgen.decode.diffusion.token_automaton import refuse_infinite_checks
from structgen.decode.step.background import with_aio
from structgen.decode.step.context import check_model, check_vocabulary, constraint_of
from structgen.decode.step.sampler import Greedy, Sampler
from structgen.errors import GenerationError
from structgen.methods.infilling.autoregressive import Interruption, fill_autoregressive, find_markers
from structgen.methods.infilling.diffusion import fill_diffusion
from structgen.methods.infilling.frame import Frame, InfillResult
from structgen.methods.infilling.open_canvas import OPEN, RegularOpen
from structgen.methods.infilling.open_network import NetworkOpen
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.engine.constraint import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.methods.infilling.autoregressive import Order
    from structgen.methods.infilling.diffusion import Lengths
    from structgen.methods.infilling.frame import FilledHole, Part
    from structgen.methods.infilling.open_canvas import OpenLanguage
    from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["infill", "open_language"]

_LENGTHS: Final = ("rate", "mass", "longest")


@with_aio
def infill(  # noqa: PLR0913  one entry for two kinds of model; each argument is a keyword with a default
    model: LanguageModel | DiffusionModel,
    parts: Sequence[Part],
    grammar: Grammar | Constraint,
    *,
    prompt: Prompt = "",
    sampler: Sampler | CanvasSampler | None = None,
    seed: int = 0,
    order: Order = "forward",
    middle: bool = True,
    policy: CommitPolicy | None = None,
    temperature: float = 1.0,
    lengths: Lengths = "rate",
    stream: Callable[[Snapshot], object] | None = None,
    chat: bool = False,
    limits: Limits | None = None,
) -> InfillResult:
    """Fill the holes of a text so that the whole is a string of a grammar.

    Before anything is generated, and after each token, the rest is known to be completable with the tokens that every
    hole has left. So the result is valid, whatever the model prefers, and a token is blocked only if no valid text
    contains it.

    An autoregressive model fills one hole after another. If its vocabulary has fill-in-the-middle markers, it reads the
    texts before and after the hole. Otherwise it reads the text before, and the probability of the first token after
    the hole counts as the probability that the filling ends. A diffusion model reads the whole text and fills all holes
    together.

    Args:
        model: an autoregressive or a diffusion model.
        parts: texts and holes in order, for instance ``["def f(x):", hole(12), "return y"]``.
        grammar: the grammar of the whole text, or a constraint that was compiled for the model's vocabulary.
        prompt: the model's prompt.
        sampler: for an autoregressive model, chooses tokens: ``Greedy`` (the default) or ``Multinomial``; for a
            diffusion model, takes completions: ``Dingo`` (the default) or ``Posterior``.
        seed: of the random numbers; the same seed gives the same text.
        order: of the holes, and within them, for an autoregressive model.
        middle: whether to use fill-in-the-middle markers if the vocabulary has them.
        policy: decides which slots a diffusion model commits; None for the most confident slot in each pass.
        temperature: of the distribution of a diffusion model.
        lengths: how the lengths of fillings on a canvas are chosen; see ``structgen.methods.infilling.diffusion``.
        stream: called with each ``Snapshot`` of a canvas.
        chat: whether a prompt that is a text becomes a message of the model's chat template.
        limits: for compiling a grammar; a constraint has its own.

    Raises:
        GenerationError: no filling makes the text valid, which is found before any forward pass; or the model fails.
        ValueError: the parts, or another argument, are invalid.
        VocabularyError: the vocabulary cannot spell a text, or the constraint belongs to another vocabulary.
        GrammarError: the grammar does not compile, or has values that must differ from each other.
        LimitExceeded: a bound of ``limits`` was reached.
        ModelError: the prompt cannot be encoded.
        ArgumentError: the model or the grammar has the wrong type, such as a name or a schema.

    Complexity: two queries of the language for each token of an autoregressive model; a query costs O(slots x edges of
        the token automaton) for a regular grammar; see ``NetworkOpen`` for others. On a canvas, the cost of
        ``generate``, and for the choice of lengths a forward pass for each possible length of each hole.
    """
    check_model(model, "infill")
    constraint = constraint_of(grammar, model, limits)
    check_vocabulary(constraint.vocabulary, model)
    if order not in ("forward", "backward") and not isinstance(order, Interruption):
        raise ValueError(f"infill: order must be 'forward', 'backward' or an Interruption; found {order!r}")
    if lengths not in _LENGTHS:
        raise ValueError(f"infill: lengths must be one of {', '.join(_LENGTHS)}; found {lengths!r}")
    frame = Frame.of(parts, constraint.vocabulary)
    opened = open_language(constraint)
    _check_completable(frame, opened)
    if isinstance(model, DiffusionModel):
        if order != "forward":
            raise ValueError("infill: a diffusion model fills all holes together; leave out order")
        fillings, forwards = fill_diffusion(
            model,
            prompt,
            frame,
            constraint,
            opened,
            sampler=_checked(sampler, CanvasSampler, Dingo()),
            policy=policy,
            temperature=temperature,
            lengths=lengths,
            seed=seed,
            chat=chat,
            stream=stream,
        )
    else:
        fillings, forwards = fill_autoregressive(
            model,
            prompt,
            frame,
            opened,
            sampler=_checked(sampler, Sampler, Greedy()),
            seed=seed,
            order=order,
            markers=find_markers(model.vocabulary) if middle else None,
            chat=chat,
        )
    return _result(constraint, frame, fillings, forwards)


def _checked(sampler: object, kind: Any, default: Any) -> Any:
    """Return the sampler if it is of the kind that the model needs.

    Raises:
        ValueError: it is not.
    """
    if sampler is None:
        return default
    if not isinstance(sampler, kind):
        raise ValueError(f"infill: this model takes a {kind.__name__}, for instance {default!r}; found {sampler!r}")
    return sampler


def _check_completable(frame: Frame, language: OpenLanguage) -> None:
    """Refuse a frame that no filling makes valid, or none of so few tokens."""
    slots = list(frame.texts[0])
    for limit, text in zip(frame.holes, frame.texts[1:], strict=True):
        slots += [*[OPEN] * limit, *text]
    if language.completable(np.array(slots, dtype=np.int32)):
        return
    texts = [language.vocabulary.decode(text).decode("utf-8", "replace") for text in frame.texts]
    raise GenerationError(
        "infill",
        "the holes cannot be filled so that the text is a string of the grammar",
        evidence=f"the fixed texts are {texts!r:.200}, the holes take {', '.join(map(str, frame.holes))} tokens",
        remedy="give the holes more tokens, or check the fixed texts with structgen explain",
    )


def _result(constraint: Constraint, frame: Frame, fillings: list[FilledHole], forwards: int) -> InfillResult:
    """Join texts and fillings, and check the result with the matcher."""
    tokens = list(frame.texts[0])
    for filling, text in zip(fillings, frame.texts[1:], strict=True):
        tokens += [*filling.tokens, *text]
    matcher = constraint.matcher()
    data = constraint.vocabulary.decode(tokens)
    if not all(matcher.accept(token) for token in tokens) or not matcher.is_accepting:
        raise RuntimeError(f"the canvas language and the matcher disagree about {data!r:.200}")
    return InfillResult(
        data=data,
        tokens=tuple(tokens),
        fillings=tuple(fillings),
        forwards=forwards,
        grammar=constraint.grammar,
        vocabulary=constraint.vocabulary,
    )


_LANGUAGES: Final[WeakKeyDictionary[Constraint, OpenLanguage]] = WeakKeyDictionary()


def open_language(constraint: Constraint) -> OpenLanguage:
    """Return the canvases with open slots that spell a string of the constraint's grammar; cached by constraint.

    Raises:
        GrammarError: the grammar has values that must differ, or labels that must decode.
        LimitExceeded: the network of a recursive grammar has too many states.
    """
    language = _LANGUAGES.get(constraint)
    if language is None:
        refuse_infinite_checks(constraint)
        regular = regular_language(constraint)
        language = NetworkOpen(constraint) if regular is None else RegularOpen(regular)
        _LANGUAGES[constraint] = language
    return language
