"""``infill``: text with holes, filled so that the whole is in the language of a grammar.

``open_language`` says which canvases with open slots a constraint stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from structgen.decode.diffusion.canvas import regular_language
from structgen.decode.diffusion.posterior import CanvasSampler, Dingo
from structgen.decode.diffusion.token_automaton import check_finite_checks
from structgen.decode.step.context import check_vocabulary, constraint_of
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

    Before anything is written, and after each token, it is known that the rest can be completed with the tokens that
    every hole has left: the result is a member, whatever the model says, and no token is blocked with which it could
    have become one.

    A model that writes from left to right fills one hole after another.  If its vocabulary has markers for filling in
    the middle, it reads the texts before and after the hole; else it reads what stands before, and the chance that it
    gives to the first token after the hole counts as the chance that the filling ends.  A diffusion model sees the
    whole text and fills all holes together.

    Args:
        model: an autoregressive or a diffusion model.
        parts: texts and holes in their order, for instance ``["def f(x):", hole(12), "return y"]``.
        grammar: what the whole text belongs to, or a constraint that was compiled for the model's vocabulary.
        prompt: what the model reads first.
        sampler: how tokens are chosen: ``Greedy`` or ``Multinomial``; for a diffusion model how a completion is taken:
            ``Dingo`` or ``Posterior``.  None is ``Greedy`` or ``Dingo``.
        seed: of the random numbers; the same seed gives the same text.
        order: of the holes, and within them, for a model that writes from left to right.
        middle: use the markers for filling in the middle where the vocabulary has them.
        policy: which slots a diffusion model commits at a time; None is one slot a forward pass, the surest.
        temperature: of the distribution of a diffusion model.
        lengths: how the lengths of fillings on a canvas are chosen; see ``structgen.methods.infilling.diffusion``.
        stream: called with each ``Snapshot`` of a canvas.
        chat: whether a prompt that is a text becomes a message of the model's chat template.
        limits: for compiling a grammar; a constraint has its own.

    Raises:
        GenerationError: the holes cannot be filled so that the text is a member, before any forward pass; or the model
            fails.
        ValueError: the parts, or one of the other arguments, are none.
        VocabularyError: a text has bytes that no tokens spell, or the constraint is of another vocabulary.
        GrammarError: the grammar does not compile, or has values that must differ from each other.
        LimitExceeded: a bound of ``limits`` was reached.
        ModelError: the prompt cannot be encoded.

    Complexity: two questions to the language for each token that a left to right model writes; one costs
        O(slots x edges of the automaton over tokens) for a regular grammar; see ``network_open`` for others.  On a
        canvas the cost of ``generate``, and for the choice of lengths a forward pass for each length of each hole.
    """
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
            raise ValueError("infill: a diffusion model fills all holes together; leave order as it is")
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
    """The sampler, if it is of the kind that the model needs."""
    if sampler is None:
        return default
    if not isinstance(sampler, kind):
        raise ValueError(f"infill: this model takes a {kind.__name__}, for instance {default!r}; found {sampler!r}")
    return sampler


def _check_completable(frame: Frame, language: OpenLanguage) -> None:
    """Refuse fixed texts between which nothing can stand that makes a member, or not in so few tokens."""
    slots = list(frame.texts[0])
    for most, text in zip(frame.holes, frame.texts[1:], strict=True):
        slots += [*[OPEN] * most, *text]
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
    """Join what was written, and let the matcher say once more that it is a member."""
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
    """Return the canvases with open slots that spell a string of the grammar of a constraint.

    Made once for each constraint.

    Raises:
        GrammarError: the grammar has values that must differ, or labels that must decode.
        LimitExceeded: the network of a grammar that recurs has more states than are kept.
    """
    known = _LANGUAGES.get(constraint)
    if known is None:
        check_finite_checks(constraint)
        known = _LANGUAGES[constraint] = _build_language(constraint)
    return known


def _build_language(constraint: Constraint) -> OpenLanguage:
    regular = regular_language(constraint)
    return NetworkOpen(constraint) if regular is None else RegularOpen(regular)
