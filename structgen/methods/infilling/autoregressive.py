"""Holes filled by an autoregressive model, in a given order, with fill-in-the-middle markers if the model has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np

from structgen.decode.step.background import check_stopped
from structgen.decode.step.context import Context
from structgen.decode.step.distribution import log_mass
from structgen.engine.mask import allowed_ids
from structgen.errors import GenerationError, number_of
from structgen.methods.infilling.frame import FilledHole
from structgen.methods.infilling.open_canvas import OPEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.step.sampler import Sampler
    from structgen.engine.vocabulary import Vocabulary
    from structgen.methods.infilling.frame import Frame
    from structgen.methods.infilling.open_canvas import OpenLanguage
    from structgen.models.protocol import LanguageModel, Logits, Prompt

__all__ = ["Interruption", "Markers", "Order", "fill_autoregressive", "find_markers"]

# Spellings of prefix, suffix, middle; None if the filling follows the prefix, which then comes last.
_FAMILIES: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral
)


class Markers(NamedTuple):
    """The ids of the fill-in-the-middle markers of a model.

    Attributes:
        prefix: precedes the text before the hole.
        suffix: precedes the text after the hole.
        middle: precedes the filling; None if the order is suffix, prefix, filling.
    """

    prefix: int
    suffix: int
    middle: int | None

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Return the model's input for filling a hole."""
        if self.middle is None:
            return [self.suffix, *after, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *after, self.middle]


def find_markers(vocabulary: Vocabulary) -> Markers | None:
    """Return the markers of a vocabulary, or None if it has none.

    Some tokenizers list them as special tokens, others as ordinary tokens.

    Source: M. Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022, arXiv 2207.14255);
        the spellings are those of the tokenizers of the models in the table.
    """
    special = {text: token for token, text in reversed([*vocabulary.special.items()])}
    spellings = {
        name.encode(): name for family in _FAMILIES for name in family if name is not None and name not in special
    }
    for token, piece in enumerate(vocabulary.tokens):
        if piece in spellings:
            special.setdefault(spellings[piece], token)
    for prefix, suffix, middle in _FAMILIES:
        if prefix in special and suffix in special and (middle is None or middle in special):
            return Markers(special[prefix], special[suffix], None if middle is None else special[middle])
    return None


@final
@dataclass(frozen=True, slots=True)
class Interruption:
    """Fill holes from left to right, but if the model's confidence drops, write the end of the hole first.

    If the most probable allowed token has a probability below ``below``, the hole is interrupted: its end is written
    first, starting with ``suffix``, and then the part between. The end may use half of the remaining tokens; the middle
    gets the rest. A hole is interrupted at most once, and only if ``suffix`` is possible there.

    Attributes:
        below: a probability; 0 never interrupts, anything above 1 interrupts at once.
        suffix: the text with which the end begins; it may be empty.

    Raises:
        ValueError: ``below`` is negative or NaN.

    Source: L. Zheng et al., "Self-Infilling Code Generation" (ICML 2024, arXiv 2311.17972), without its loop that
        rewrites the prefix.
    """

    below: float = 0.25
    suffix: str = ""

    def __post_init__(self) -> None:
        if not self.below >= 0:
            raise ValueError(f"Interruption: below must be a probability; found {self.below!r}")


Order: TypeAlias = "Literal['forward', 'backward'] | Interruption"
"""``"forward"``: the first hole first. ``"backward"``: the last hole first, so that earlier holes see later text."""


def fill_autoregressive(  # noqa: PLR0913  of infill
    model: LanguageModel,
    prompt: Prompt,
    frame: Frame,
    language: OpenLanguage,
    *,
    sampler: Sampler,
    seed: int,
    order: Order,
    markers: Markers | None,
    chat: bool,
) -> tuple[list[FilledHole], int]:
    """Fill the holes of a completable frame.

    Returns:
        The fillings, and the number of forward passes.

    Raises:
        GenerationError: the model returned no usable logits, or its context is too short.
    """
    spoken = model.encode_prompt(prompt, chat=chat)
    marked = model.vocabulary.tokenize(prompt) if isinstance(prompt, str) else spoken
    _check_context(model, max(len(spoken), len(marked)), frame)
    with Context(model) as context:
        inputs = _Inputs(list(spoken), list(marked), markers)
        writer = _HoleWriter(context, inputs, frame, language, sampler, np.random.Generator(np.random.PCG64(seed)))
        gaps = list(writer.gaps)
        for gap in reversed(gaps) if order == "backward" else gaps:
            writer.fill(gap, order if isinstance(order, Interruption) else None)
        return writer.fillings(len(frame.holes)), context.forwards


def _check_context(model: LanguageModel, prompt_tokens: int, frame: Frame) -> None:
    """Refuse more tokens than the context holds: the prompt, the texts, the holes, and three markers."""
    needed = prompt_tokens + sum(map(len, frame.texts)) + sum(frame.holes) + 3
    if model.max_context is not None and needed > model.max_context:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and text exceed its context by {number_of(needed - model.max_context, 'token')}",
            evidence=f"the prompt has {prompt_tokens}, texts and holes take {needed - prompt_tokens} with markers, the "
            f"context holds {model.max_context}",
            remedy="shorten the prompt or the texts, or make the holes smaller",
        )


@final
@dataclass(eq=False, slots=True)
class _Gap:
    """A part of a hole that is written without interruption.

    Attributes:
        hole: the number of its hole.
        capacity: how many tokens it may still take.
        is_end: whether it is the end of a hole and was begun before the part to its left.
        written: its tokens.
    """

    hole: int
    capacity: int
    is_end: bool = False
    written: list[int] = field(default_factory=list)
    log_prob: float = 0.0


class _Inputs(NamedTuple):
    """The prompt as the model reads it without markers and with markers, and the markers."""

    unmarked: list[int]
    marked: list[int]
    markers: Markers | None


@final
class _HoleWriter:
    """Fixed texts and gaps while they are filled.

    Invariant: the canvas is completable.
    """

    def __init__(
        self,
        context: Context,
        inputs: _Inputs,
        frame: Frame,
        language: OpenLanguage,
        sampler: Sampler,
        generator: np.random.Generator,
    ) -> None:
        self._context = context
        self._inputs = inputs
        self._language = language
        self._sampler = sampler
        self._generator = generator
        self._eos = list(language.vocabulary.eos)
        self._row: list[tuple[int, ...] | _Gap] = [frame.texts[0]]
        for number, (capacity, text) in enumerate(zip(frame.holes, frame.texts[1:], strict=True)):
            self._row += [_Gap(number, capacity), text]

    @property
    def gaps(self) -> list[_Gap]:
        return [part for part in self._row if isinstance(part, _Gap)]

    def fillings(self, holes: int) -> list[FilledHole]:
        """The filling of each hole, including the fixed prefix of its end."""
        tokens: list[list[int]] = [[] for _ in range(holes)]
        scores = [0.0] * holes
        current = -1
        last = {gap.hole: gap for gap in self.gaps}
        for part in self._row:
            if isinstance(part, _Gap):
                current = part.hole
                tokens[current] += part.written
                scores[current] += part.log_prob
                if last[current] is part:
                    current = -1
            elif current >= 0:
                tokens[current] += part
        decode = self._language.vocabulary.decode
        return [FilledHole(decode(ids), tuple(ids), score) for ids, score in zip(tokens, scores, strict=True)]

    def fill(self, gap: _Gap, interruption: Interruption | None) -> int:
        """Write one gap to its end, and return how many tokens it left unused."""
        self._context.replace(self._prompt(gap))
        while True:
            ids, can_end = self._choices(gap)
            if not len(ids):
                break
            if len(ids) == 1 and not can_end:
                self._take(gap, int(ids[0]))
                continue
            log_p = self._distribution(gap, ids, can_end=can_end)
            if interruption is not None and float(np.exp(log_p.max())) < interruption.below:
                parts = self._split(gap, interruption)
                if parts is not None:
                    end, middle = parts
                    middle.capacity += self.fill(end, None)
                    return self.fill(middle, None)
                interruption = None
            index = self._sampler.draw(log_p, self._generator)
            gap.log_prob += float(log_p[index])
            if can_end and index == 0:
                break
            self._take(gap, int(ids[index - can_end]))
        left, gap.capacity = gap.capacity, 0
        return left

    def _choices(self, gap: _Gap) -> tuple[NDArray[np.intp], bool]:
        """The tokens that may come next in a gap, and whether it may end here."""
        size = self._language.vocabulary.size
        if not gap.capacity:
            return np.zeros(0, dtype=np.intp), True
        capacity, gap.capacity = gap.capacity, 0
        slot = self._slot(gap)
        can_end = self._language.completable(self._canvas(), at=slot)
        gap.capacity = capacity
        return allowed_ids(self._language.allowed(self._canvas(), slot), size), can_end

    def _distribution(self, gap: _Gap, ids: NDArray[np.intp], *, can_end: bool) -> NDArray[np.float64]:
        """Log-probabilities of the end, if the gap may end, and of the tokens, renormalised."""
        if self._context.session.length == len(self._context):
            self._context.prepare()
        check_stopped()
        logits: Logits = self._context.session.extend(self._context.unseen)
        log_mass(logits)  # raises on invalid logits
        allowed = logits[ids].astype(np.float64)
        if can_end:
            ends = self._ends(gap)
            end = log_mass(logits[ends].astype(np.float64)) if ends else -np.inf
            allowed = np.concatenate([[end], allowed])
        mass = log_mass(allowed)
        if mass == -np.inf:
            raise GenerationError(
                "logits",
                "the model gives probability 0 to every token that is allowed here",
                evidence=f"{len(ids)} tokens are allowed, for instance {ids[:8].tolist()}",
                remedy="check for another logits processor",
            )
        distribution: NDArray[np.float64] = allowed - mass
        return distribution

    def _take(self, gap: _Gap, token: int) -> None:
        gap.written.append(token)
        gap.capacity -= 1
        self._context.append([token])

    def _split(self, gap: _Gap, interruption: Interruption) -> tuple[_Gap, _Gap] | None:
        """Divide the rest of a gap into a middle and an end; None if the end is not possible there."""
        suffix = tuple(self._language.vocabulary.tokenize(interruption.suffix))
        capacity = gap.capacity - len(suffix)
        if capacity < 0:
            return None
        end = _Gap(gap.hole, (capacity + 1) // 2, is_end=True)
        middle = _Gap(gap.hole, capacity // 2)
        row = list(self._row)
        at = row.index(gap)
        before = gap.capacity
        gap.capacity = 0
        self._row[at + 1 : at + 1] = [(), middle, suffix, end]
        # If nothing is written yet, the middle may need the tokens of the end.
        if not self._language.completable(self._canvas()):
            self._row, gap.capacity = row, before
            return None
        return end, middle

    def _canvas(self) -> NDArray[np.int32]:
        slots: list[int] = []
        for part in self._row:
            slots += [*part.written, *[OPEN] * part.capacity] if isinstance(part, _Gap) else part
        return np.array(slots, dtype=np.int32)

    def _slot(self, gap: _Gap) -> int:
        """The first open slot of a gap."""
        before = self._row[: self._row.index(gap)]
        start = sum(len(part.written) + part.capacity if isinstance(part, _Gap) else len(part) for part in before)
        return start + len(gap.written)

    def _written(self, parts: Sequence[tuple[int, ...] | _Gap]) -> list[int]:
        return [token for part in parts for token in (part.written if isinstance(part, _Gap) else part)]

    def _prompt(self, gap: _Gap) -> list[int]:
        """The model's input for a gap: all known tokens; open slots are left out."""
        at = self._row.index(gap)
        before, after = self._written(self._row[:at]), self._written(self._row[at + 1 :])
        unmarked, marked, markers = self._inputs
        if markers is None or not (after or gap.is_end):
            return unmarked + before
        if gap.is_end and markers.middle is not None:
            begun = self._row[at - 1]  # the fixed prefix of the end follows the marker
            split = len(before) - (0 if isinstance(begun, _Gap) else len(begun))
            return [markers.prefix, *marked, *before[:split], markers.suffix, *before[split:]]
        return markers.prompt(marked + before, after)

    def _ends(self, gap: _Gap) -> list[int]:
        """The tokens by which the model signals the end of a gap."""
        markers = self._inputs.markers
        after = self._written(self._row[self._row.index(gap) + 1 :])
        if markers is not None and not gap.is_end:
            return self._eos
        if after:
            return after[:1]
        if markers is not None and markers.middle is not None:
            return [markers.middle]
        return self._eos
