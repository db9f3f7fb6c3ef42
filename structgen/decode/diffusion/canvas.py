"""The first canvas, the finished canvas, and the canvas language of a constraint.

A constraint with a finite automaton gives a regular language; any other gives a context-free language.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import numpy as np
from structgen_kernels import _native

from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import FAR, MAX_STATES, byte_automaton, lift, refuse_infinite_checks
from structgen.decode.step.context import check_vocabulary, constraint_of
from structgen.decode.step.result import BudgetWatch
from structgen.engine.network import recurs
from structgen.errors import BudgetError, GenerationError, LimitExceeded, ModelError, number_of
from structgen.grammar.limits import PYTHON_STEP, counted, spend_steps, steps_left
from structgen.models.model_input import find_mask

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from structgen.decode.diffusion.context_free.language import Ambiguity
    from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage
    from structgen.decode.diffusion.token_automaton import TokenAutomaton
    from structgen.engine import Vocabulary
    from structgen.engine.constraint import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol.diffusion import DiffusionModel

__all__ = [
    "MAX_EDGES",
    "MAX_RECURSIVE_STATES",
    "MAX_SLOTS",
    "canvas_constraint",
    "canvas_language",
    "canvas_length",
    "cut_position",
    "first_canvas",
    "mask_of",
    "output_tokens",
    "regular_language",
]


def mask_of(model: DiffusionModel) -> int:
    """Return the id of the model's MASK token.

    Raises:
        ModelError: the model has none, or its MASK is a token that a slot may hold.
    """
    mask_token: object = model.mask_token
    if not isinstance(mask_token, int) or isinstance(mask_token, bool):
        raise ModelError(
            f"model {model.name!r}",
            "it has no MASK token",
            evidence=f"its mask_token is {mask_token!r}",
            remedy="use a masked diffusion model, or set its mask_token",
        )
    return find_mask(model.vocabulary, mask_token)


def canvas_constraint(grammar: Grammar | Constraint, model: DiffusionModel, limits: Limits | None) -> Constraint:
    """Return a constraint for the model's vocabulary; compile a grammar.

    Raises:
        TypeError: ``grammar`` is neither a grammar nor a constraint.
        GrammarError, LimitExceeded: the grammar does not compile.
        VocabularyError: the vocabulary cannot spell the grammar, or the constraint belongs to another vocabulary.
    """
    constraint = constraint_of(grammar, model, limits)
    check_vocabulary(constraint.vocabulary, model)
    return constraint


def first_canvas(
    canvas: int | ArrayLike | None,
    language: CanvasLanguage,
    model: DiffusionModel,
    prompt_tokens: int,
    mask_token: int,
    block: int | None,
) -> Canvas:
    """Return the first canvas, with ``FREE`` in every slot to fill.

    Args:
        canvas: the number of slots, or token ids with ``FREE`` or MASK in the free slots; None for a length that suits
            the language.
        language: the language of the output.
        model: the model; canvas and prompt must fit into its context.
        prompt_tokens: the length of the prompt.
        mask_token: the model's MASK.
        block: slots of a block; a default length is rounded up to whole blocks.

    Raises:
        BudgetError: the canvas has fewer slots than the shortest string takes.
        GenerationError: prompt and canvas exceed the model's context.
        ValueError: ``canvas`` is neither a number of slots nor a row of tokens, or ``block`` is below 1.
    """
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ValueError(f"block must be an integer of at least 1, or None; found {block!r}")
    capacity = None if model.max_context is None else model.max_context - prompt_tokens
    if canvas is None:
        slots = canvas_length(language)
        if block is not None:
            slots = -(-slots // block) * block
        slots = slots if capacity is None else max(min(slots, capacity), language.shortest, 1)
        first = np.full(slots, FREE, dtype=np.int32)
    elif isinstance(canvas, (int, np.integer)) and not isinstance(canvas, bool):
        if canvas < 1:
            raise ValueError(f"canvas must have at least 1 slot; found {canvas!r}")
        first = np.full(int(canvas), FREE, dtype=np.int32)
    else:
        first = _given(canvas, language.vocabulary, mask_token)
    if len(first) < language.shortest:
        raise BudgetError(budget=len(first), needed=language.shortest, name="canvas")
    if capacity is not None and len(first) > capacity:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and canvas exceed its context by {number_of(len(first) - capacity, 'token')}",
            evidence=f"the prompt has {prompt_tokens} tokens, the canvas {len(first)} slots, the context "
            f"{model.max_context}",
            remedy=f"allow at most canvas={capacity}, or shorten the prompt"
            if capacity >= max(language.shortest, 1)
            else "shorten the prompt",
        )
    return first


def _given(canvas: ArrayLike, vocabulary: Vocabulary, mask_token: int) -> Canvas:
    """The canvas of the caller, with ``FREE`` in place of MASK.

    Raises:
        ValueError: it is not a row of token ids.
    """
    given = np.asarray(canvas)
    if given.ndim != 1 or not len(given) or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            f"canvas must be a number of slots or a row of token ids; found {given.dtype} of shape {given.shape}"
        )
    outside = (given != FREE) & ((given < 0) | (given >= vocabulary.size))
    if outside.any():
        slot = int(outside.argmax())
        raise ValueError(
            f"canvas: slot {slot} holds {int(given[slot])}, which is no token id; use 0 to {vocabulary.size - 1}, or "
            f"{FREE} for a free slot"
        )
    return np.where(given == mask_token, FREE, given).astype(np.int32)


MAX_SLOTS: Final = 256
"""The largest default length of a canvas, unless the shortest string takes more slots."""

_COVERED: Final = 0.75
_MULTIPLE: Final = 8


def canvas_length(language: CanvasLanguage, *, max_slots: int = MAX_SLOTS) -> int:
    """Return how many slots a canvas of ``language`` gets by default, at least one.

    A context-free language gets 16 slots more than four times its shortest string.

    Args:
        language: the language of the output.
        max_slots: the upper limit, unless the shortest string takes more slots.

    Raises:
        LimitExceeded: the steps of the call are counted and used up.
        ValueError: ``max_slots`` is below 1.

    Complexity: O(max_slots x edges of the states that a walk reaches).
    """
    if max_slots < 1:
        raise ValueError(f"max_slots must be at least 1; found {max_slots!r}")
    if isinstance(language, RegularLanguage):
        typical, longest = _typical_lengths(language.automaton, language.vocabulary, max_slots)
    else:
        typical, longest = 4 * language.shortest + 2 * _MULTIPLE, max_slots
    rounded = -(-typical // _MULTIPLE) * _MULTIPLE
    return max(1, language.shortest, min(rounded, longest, max_slots))


def _typical_lengths(automaton: TokenAutomaton, vocabulary: Vocabulary, max_slots: int) -> tuple[int, int]:
    """Return the length that covers three of four random walks, and the longest; both are at most ``max_slots``.

    Walks are followed no further than the multiple of ``_MULTIPLE`` that the first is rounded up to.
    """
    source, target, weights = _walk_edges(automaton, vocabulary)
    accepting = automaton.accepting.astype(np.float64)
    total = accepting + np.bincount(source, weights, automaton.states)
    # A state without edges and without acceptance has total 0, but no remaining edge leads to it.
    shares = np.divide(weights, total[source])
    stops = np.divide(accepting, total, out=np.zeros_like(accepting), where=total > 0)
    steps, lengths = _native.walk_lengths(
        source, target, shares, stops, _COVERED, _MULTIPLE, max_slots, steps_left(_UNBOUNDED)
    )
    _spend_length(steps, automaton)
    typical, longest = lengths or (max_slots, max_slots)
    return min(typical, longest), longest


_UNBOUNDED: Final = 1 << 62


def _walk_edges(
    automaton: TokenAutomaton, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Return source, target and weight of the edges that a random walk may take."""
    tokens_of_class = np.bincount(automaton.class_of, minlength=automaton.classes)
    token_of_class = np.zeros(automaton.classes, dtype=np.int64)
    token_of_class[automaton.class_of] = np.arange(len(automaton.class_of))
    running = np.concatenate([[0], np.cumsum(tokens_of_class[automaton.label_class])])
    sizes = (running[automaton.label_begin[1:]] - running[automaton.label_begin[:-1]])[automaton.label]
    retained = (automaton.distance[automaton.target] < FAR) & (sizes > 0)
    of_label = np.full(len(automaton.label_begin) - 1, -1, dtype=np.int64)  # the token of a label that has only one
    for label in np.unique(automaton.label[retained & (sizes == 1)]).tolist():
        classes = automaton.label_class[automaton.label_begin[label] : automaton.label_begin[label + 1]]
        of_label[label] = next(int(token_of_class[of]) for of in classes if tokens_of_class[of])
    single = np.flatnonzero(retained & (sizes == 1))
    _spend_length(PYTHON_STEP * len(single) // 2, automaton)
    tokens = of_label[automaton.label[single]]
    firsts = np.flatnonzero(np.diff(automaton.source[single], prepend=-1))
    dropped: dict[bytes, list[int]] = {}  # of the tokens of a state, those that begin the next one
    for first, last in pairwise([*firsts.tolist(), len(single)]):
        if last - first < 2:
            continue
        key = tokens[first:last].tobytes()
        if key not in dropped:
            spelled = sorted((vocabulary.tokens[token], at) for at, token in enumerate(tokens[first:last].tolist()))
            dropped[key] = [
                at
                for (piece, at), (longer, _) in pairwise(spelled)
                if piece and longer != piece and longer.startswith(piece)
            ]
        if dropped[key]:
            retained[single[first:last][dropped[key]]] = False
    source, target = automaton.source[retained], automaton.target[retained]
    return source, target, np.log2(1.0 + sizes[retained])


def _spend_length(steps: int, automaton: TokenAutomaton) -> None:
    spend_steps(
        steps,
        "diffusion decoding: length of a canvas",
        evidence=f"the automaton has {automaton.states} states and {len(automaton.source)} edges",
        remedy="give the number of slots, narrow the grammar, or raise Limits(canvas_steps=...)",
    )


def output_tokens(canvas: Canvas, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens before the first EOS."""
    ends = np.flatnonzero(np.isin(canvas, vocabulary.eos))
    tokens: list[int] = canvas[: ends[0]].tolist() if len(ends) else canvas.tolist()
    return tokens


def cut_position(constraint: Constraint, tokens: list[int], slots: int) -> int | None:
    """Return where the size of the canvas decided, after the matcher of autoregressive decoding has checked the output.

    Args:
        constraint: the constraint of the canvas.
        tokens: the output without EOS.
        slots: of the canvas.

    Returns:
        the first position at which a token of the grammar did not fit on the canvas: see ``BudgetWatch.cut_at``.

    Raises:
        GenerationError: the output is not valid, which a policy that mixes tokens of several completions can cause.
    """
    matcher = constraint.matcher()
    accepted = next((position for position, token in enumerate(tokens) if not matcher.accept(token)), len(tokens))
    if accepted < len(tokens) or not matcher.is_accepting:
        raise GenerationError(
            "canvas",
            "the committed tokens are no string of the grammar",
            evidence=f"{constraint.vocabulary.decode(tokens)!r} is invalid from token {accepted} on",
            remedy="a commit policy must commit tokens of one completion of the posterior",
        )
    return BudgetWatch(constraint, slots).cut_at(tokens, is_complete=True)


MAX_EDGES: Final = 250_000
"""Edges of a token automaton above which a recursive constraint is treated as context-free."""

MAX_RECURSIVE_STATES: Final = 2_000
"""States of a byte automaton, before minimisation, above which a recursive constraint is treated as context-free.

Most recursive constraints have infinitely many states, and each state may take longer than the one before.
"""

_REGULAR: Final[WeakKeyDictionary[Constraint, RegularLanguage | None]] = WeakKeyDictionary()
_CONTEXT_FREE: Final[WeakKeyDictionary[Constraint, dict[Ambiguity, ContextFreeLanguage]]] = WeakKeyDictionary()


def canvas_language(constraint: Constraint, *, ambiguity: Ambiguity = "refused") -> CanvasLanguage:
    """Return the canvases that spell a string of the constraint's grammar; built once for each constraint.

    Args:
        constraint: a constraint without uniqueness checks.
        ambiguity: for recursive grammars in which a canvas may have several parses: ``"refused"`` raises on masses and
            marginals, ``"counted"`` counts a canvas once for each parse.

    Raises:
        GrammarError: the grammar has token budgets, values that must differ, or labels that must decode.
        LimitExceeded: the automaton of a non-recursive grammar has too many states or moves, or the network of a
            recursive grammar has too many states or effects; or to make the tables takes more than
            ``Limits.canvas_steps``.
    """
    with counted(constraint.limits, limit="canvas_steps"):
        regular = regular_language(constraint)
        if regular is not None:
            return regular
        languages = _CONTEXT_FREE.setdefault(constraint, {})
        if ambiguity not in languages:
            languages[ambiguity] = ContextFreeLanguage(constraint, ambiguity=ambiguity)
        return languages[ambiguity]


def regular_language(constraint: Constraint) -> RegularLanguage | None:
    """Return the canvases of a constraint that is decoded by its finite automaton, None for any other constraint.

    A non-recursive constraint always is, whatever the size of its automaton; a recursive one if its automaton is small.

    Raises:
        GrammarError: as ``canvas_language``.
        LimitExceeded: the automaton of a non-recursive grammar has too many states or moves, or takes more than
            ``Limits.canvas_steps``.
    """
    if constraint not in _REGULAR:
        refuse_infinite_checks(constraint)
        with counted(constraint.limits, limit="canvas_steps"):
            _REGULAR[constraint] = _small(constraint) if recurs(constraint) else _finite(constraint)
    return _REGULAR[constraint]


def _finite(constraint: Constraint) -> RegularLanguage:
    automaton = byte_automaton(constraint)
    if automaton is None:
        raise LimitExceeded(
            "diffusion decoding",
            limit="MAX_STATES",
            maximum=MAX_STATES,
            evidence="counts in the grammar (the lengths of an address, say) multiply the states",
            remedy="remove a bound, or a format: JsonPolicy(formats='annotation')",
        )
    return RegularLanguage(lift(automaton, constraint.vocabulary), constraint.vocabulary)


def _small(constraint: Constraint) -> RegularLanguage | None:
    try:
        with counted(constraint.limits, constraint.limits.canvas_steps // 4, limit="canvas_steps"):
            automaton = byte_automaton(constraint, max_states=MAX_RECURSIVE_STATES)
            lifted = None if automaton is None else lift(automaton, constraint.vocabulary)
    except LimitExceeded:
        return None  # a chart may need less
    if lifted is None or len(lifted.source) > MAX_EDGES:
        return None
    return RegularLanguage(lifted, constraint.vocabulary)
