"""The canvas before it is filled and after, and the language that it must belong to.

A constraint with a finite automaton gives a regular language; another one gives a context-free language.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import numpy as np

from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import FAR, MAX_STATES, byte_automaton, check_finite_checks, lift
from structgen.decode.step.context import check_vocabulary, constraint_of
from structgen.engine.network import recurs
from structgen.errors import BudgetError, GenerationError, LimitExceeded, ModelError
from structgen.models.model_input import find_mask

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from structgen.decode.diffusion.context_free.language import Ambiguity
    from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage
    from structgen.decode.diffusion.token_automaton import TokenAutomaton
    from structgen.decode.step.result import FinishReason
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
    "finish_reason",
    "first_canvas",
    "mask_of",
    "output_tokens",
    "regular_language",
]


def mask_of(model: DiffusionModel) -> int:
    """Return the model's MASK.

    Raises:
        ModelError: it has none, or one that a slot may hold.
    """
    mask_token: object = model.mask_token
    if not isinstance(mask_token, int) or isinstance(mask_token, bool):
        raise ModelError(
            f"model {model.name!r}",
            "it has no MASK",
            evidence=f"its mask_token is {mask_token!r}",
            remedy="use a masked diffusion model, or say which token is MASK",
        )
    return find_mask(model.vocabulary, mask_token)


def canvas_constraint(grammar: Grammar | Constraint, model: DiffusionModel, limits: Limits | None) -> Constraint:
    """Return a constraint for the model's vocabulary; a grammar is compiled.

    Raises:
        TypeError: it is neither.
        GrammarError, LimitExceeded: the grammar does not compile.
        VocabularyError: it does not for these tokens, or the constraint belongs to another vocabulary.
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
    """Return the canvas to begin with, ``FREE`` in what is to be filled.

    Args:
        canvas: how many slots, or the canvas itself with ``FREE`` or MASK in free slots; None for a length that suits
            the language.
        language: whose members are to fit.
        model: whose context is to hold it.
        prompt_tokens: before the canvas.
        mask_token: the model's MASK.
        block: by default there are whole blocks.

    Raises:
        BudgetError: it has fewer slots than the shortest string takes.
        GenerationError: prompt and canvas exceed the model's context.
        ValueError: it is neither a number of slots nor a row of tokens, or ``block`` is below 1.
    """
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ValueError(f"block must be an integer of at least 1, or None; found {block!r}")
    room = None if model.max_context is None else model.max_context - prompt_tokens
    if canvas is None:
        slots = canvas_length(language)
        if block is not None:
            slots = -(-slots // block) * block
        found = np.full(slots if room is None else max(min(slots, room), language.shortest, 1), FREE, dtype=np.int32)
    elif isinstance(canvas, (int, np.integer)) and not isinstance(canvas, bool):
        if canvas < 1:
            raise ValueError(f"canvas must have at least 1 slot; found {canvas!r}")
        found = np.full(int(canvas), FREE, dtype=np.int32)
    else:
        found = _given(canvas, language.vocabulary, mask_token)
    if len(found) < language.shortest:
        raise BudgetError(budget=len(found), needed=language.shortest, name="canvas")
    if room is not None and len(found) > room:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and canvas exceed its context by {len(found) - room} tokens",
            evidence=f"the prompt has {prompt_tokens}, the canvas {len(found)} slots, the context holds "
            f"{model.max_context}",
            remedy=f"allow at most canvas={room}, or shorten the prompt"
            if room >= max(language.shortest, 1)
            else "shorten the prompt",
        )
    return found


def _given(canvas: ArrayLike, vocabulary: Vocabulary, mask_token: int) -> Canvas:
    """A canvas that the caller wrote, with MASK and ``FREE`` alike free.

    Raises:
        ValueError: it is no row of tokens.
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
            f"canvas: slot {slot} holds {int(given[slot])}, which is no token; ids are 0 to {vocabulary.size - 1}, and "
            f"{FREE} is free"
        )
    return np.where(given == mask_token, FREE, given).astype(np.int32)


MAX_SLOTS: Final = 256
"""Slots that a canvas gets at most, unless its shortest string takes more."""

_COVERED: Final = 0.75
_MULTIPLE: Final = 8


def canvas_length(language: CanvasLanguage, *, most: int = MAX_SLOTS) -> int:
    """Return how many slots a canvas for a member of ``language`` should have, at least one.

    A language that is not regular gets four times the slots of its shortest string and 16 more.

    Args:
        language: the members.
        most: not to be exceeded, unless the shortest string takes more.

    Raises:
        ValueError: ``most`` is below 1.

    Complexity: O(most x edges of the automaton).
    """
    if most < 1:
        raise ValueError(f"most must be at least 1; found {most!r}")
    least = max(1, language.shortest)
    if isinstance(language, RegularLanguage):
        typical, longest = _typical_lengths(language.automaton, language.vocabulary, most)
    else:
        typical, longest = 4 * language.shortest + 2 * _MULTIPLE, most
    rounded = -(-typical // _MULTIPLE) * _MULTIPLE
    return max(least, min(rounded, longest, most))


def _typical_lengths(automaton: TokenAutomaton, vocabulary: Vocabulary, most: int) -> tuple[int, int]:
    """Return how many tokens three of four walks take, and how many the longest takes, neither above ``most``."""
    source, target, weights = _walk_edges(automaton, vocabulary)
    stop = automaton.accepting.astype(np.float64)
    total = stop + np.bincount(source, weights, automaton.states)
    # States from which nothing goes on are never reached: their edges were left out.
    shares = np.divide(weights, total[source])
    stops = np.divide(stop, total, out=np.zeros_like(stop), where=total > 0)
    at = np.zeros(automaton.states)
    at[0] = 1.0
    ended, typical = 0.0, most
    for length in range(most + 1):
        ended += float(at @ stops)
        if ended >= _COVERED:
            typical = min(typical, length)
        at = np.bincount(target, at[source] * shares, automaton.states).astype(np.float64)
        if not at.any():
            return min(typical, length), length
    return typical, most


def _walk_edges(
    automaton: TokenAutomaton, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Return source, target and weight of the edges that a walk may take."""
    tokens_of_class = np.bincount(automaton.class_of, minlength=automaton.classes)
    running = np.concatenate([[0], np.cumsum(tokens_of_class[automaton.label_class])])
    sizes = (running[automaton.label_begin[1:]] - running[automaton.label_begin[:-1]])[automaton.label]
    kept = (automaton.distance[automaton.target] < FAR) & (sizes > 0)
    by_state: dict[int, list[tuple[bytes, int]]] = {}
    for edge in np.flatnonzero(kept & (sizes == 1)).tolist():
        first = int(automaton.label_begin[automaton.label[edge]])
        classes = automaton.label_class[first : int(automaton.label_begin[automaton.label[edge] + 1])]
        token = next(int(automaton.members(int(of))[0]) for of in classes if tokens_of_class[of])
        by_state.setdefault(int(automaton.source[edge]), []).append((vocabulary.tokens[token], edge))
    for spelled in by_state.values():
        spelled.sort()
        for (piece, edge), (longer, _) in pairwise(spelled):
            if piece and longer != piece and longer.startswith(piece):
                kept[edge] = False
    return automaton.source[kept], automaton.target[kept], np.log2(1.0 + sizes[kept])


def output_tokens(canvas: Canvas, vocabulary: Vocabulary) -> list[int]:
    """Return what stands before the first EOS."""
    ends = np.flatnonzero(np.isin(canvas, vocabulary.eos))
    found: list[int] = canvas[: ends[0]].tolist() if len(ends) else canvas.tolist()
    return found


def finish_reason(constraint: Constraint, tokens: list[int], *, has_stop: bool) -> FinishReason:
    """Return why the output ended, and let the matcher of autoregressive decoding check that it is a member.

    Args:
        constraint: of the output.
        tokens: the output, EOS left out.
        has_stop: whether EOS follows on the canvas.

    Raises:
        GenerationError: it is none, as may happen with a policy that commits tokens of several completions.
    """
    matcher = constraint.matcher()
    accepted = next((place for place, token in enumerate(tokens) if not matcher.accept(token)), len(tokens))
    if accepted < len(tokens) or not matcher.is_accepting:
        raise GenerationError(
            "canvas",
            "what was committed is no string of the grammar",
            evidence=f"{constraint.vocabulary.decode(tokens)!r} breaks off at token {accepted}",
            remedy="a commit policy must commit tokens of one completion that a posterior gave",
        )
    if has_stop:
        return "stop"
    goes_on = len(matcher.live_bytes()) or len(matcher.live_specials())
    return "length" if goes_on else "stop"


MAX_EDGES: Final = 250_000
"""Edges of an automaton over tokens, beyond which a constraint that recurs is treated as context-free."""

MAX_RECURSIVE_STATES: Final = 2_000
"""States of the automaton over bytes, before it is minimised, beyond which a constraint that recurs is context-free.

Most of these have infinitely many; each may take longer to make than the one before.
"""

_REGULAR: Final[WeakKeyDictionary[Constraint, RegularLanguage | None]] = WeakKeyDictionary()
_CONTEXT_FREE: Final[WeakKeyDictionary[Constraint, dict[Ambiguity, ContextFreeLanguage]]] = WeakKeyDictionary()


def canvas_language(constraint: Constraint, *, ambiguity: Ambiguity = "refused") -> CanvasLanguage:
    """Return the canvases that spell a string of the grammar of a constraint; made once for each constraint.

    Args:
        constraint: any that does not ask for values which differ from each other.
        ambiguity: what masses and marginals are where a canvas may be read in several ways, which only grammars that
            recur may ask for: ``"refused"``, or ``"counted"`` as often as it is read.

    Raises:
        GrammarError: the grammar has values that must differ, or labels that must decode.
        LimitExceeded: the automaton of a grammar that does not recur has more states or moves than are kept, or the
            network of one that does more states or effects.
    """
    regular = regular_language(constraint)
    if regular is not None:
        return regular
    known = _CONTEXT_FREE.setdefault(constraint, {})
    if ambiguity not in known:
        known[ambiguity] = ContextFreeLanguage(constraint, ambiguity=ambiguity)
    return known[ambiguity]


def regular_language(constraint: Constraint) -> RegularLanguage | None:
    """Return the canvases of a constraint that is read by its finite automaton, None for any other.

    What does not recur has one, and is read by it however large it is; what does, where it has one that is small.

    Raises:
        GrammarError: as ``canvas_language``.
        LimitExceeded: the automaton of a grammar that does not recur has more states or moves than are kept.
    """
    if constraint not in _REGULAR:
        check_finite_checks(constraint)
        _REGULAR[constraint] = _small(constraint) if recurs(constraint) else _finite(constraint)
    return _REGULAR[constraint]


def _finite(constraint: Constraint) -> RegularLanguage:
    automaton = byte_automaton(constraint)
    if automaton is None:
        raise LimitExceeded(
            "diffusion decoding",
            limit="MOST_STATES",
            maximum=MAX_STATES,
            evidence="what the grammar counts (lengths of an address, say) makes an automaton of more states",
            remedy="leave out a bound, or a format: JsonPolicy(formats='annotation')",
        )
    return RegularLanguage(lift(automaton, constraint.vocabulary), constraint.vocabulary)


def _small(constraint: Constraint) -> RegularLanguage | None:
    try:
        automaton = byte_automaton(constraint, most_states=MAX_RECURSIVE_STATES)
        lifted = None if automaton is None else lift(automaton, constraint.vocabulary)
    except LimitExceeded:
        return None  # a chart may do with less
    if lifted is None or len(lifted.source) > MAX_EDGES:
        return None
    return RegularLanguage(lifted, constraint.vocabulary)
