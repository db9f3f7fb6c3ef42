"""What a decoder needs from a diffusion language model, and nothing more.

A ``DiffusionModel`` is shared and unchanging; a ``Denoiser`` answers for one prompt with a distribution over tokens for
every slot, all at once, given what stands in the other slots.  ``TokenClasses`` are the tokens that a language does not
tell apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, final, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol.language import Logits, Prompt

__all__ = [
    "LOWEST",
    "CachingDenoiser",
    "Canvases",
    "ClassLogits",
    "Denoiser",
    "DiffusionModel",
    "ResidentCachingDenoiser",
    "ResidentDenoiser",
    "SlotLogits",
    "TokenClasses",
]

LOWEST: Final = -80.0
"""Nats below the largest logit of a slot (after temperature) that a logit counts as at least."""

Canvases: TypeAlias = "NDArray[np.int32]"
"""Token ids, ``[canvases, slots]``; ``DiffusionModel.mask_token`` in a slot that is free."""


@runtime_checkable
class Denoiser(Protocol):
    """A diffusion model that has read one prompt; not for use by two threads at a time.

    Invariant: what ``denoise`` answers about a canvas depends on the prompt and that canvas alone (up to rounding of
        float32 sums), whatever was asked before and whichever other canvases are asked about with it.
    """

    @property
    def forwards(self) -> int:
        """Forward passes that were run; canvases that share a pass count once."""

    def denoise(self, canvases: Canvases, /, *, start: int = 0, stop: int | None = None) -> Logits:
        """Return the logits of the slots from ``start`` to ``stop`` of each canvas, in one forward pass.

        Row ``i`` of a canvas is about slot ``start + i``, whatever position the network itself predicts where.

        Args:
            canvases: int32 ``[n, slots]``.
            start: the first slot that is asked about.
            stop: the slot after the last one; None is the end of the canvas.

        Returns:
            float32 ``[n, stop - start, vocabulary.size]``; the caller owns the array.

        Raises:
            GenerationError: no canvas, an id that the model lacks, or more slots than its context holds.
        """

    def close(self) -> None:
        """Free what is cached; the denoiser may be used again afterwards."""


@runtime_checkable
class CachingDenoiser(Denoiser, Protocol):
    """A denoiser that can leave slots out of a pass and read their keys and values from an earlier one; optional.

    What it answers then is an approximation: keys and values of the slots left out are those of an earlier canvas.
    """

    def denoise_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /) -> Logits:
        """Run the prompt's continuation for the live slots of one canvas and keep their new keys and values.

        Slots that no call has run yet are live whatever ``live`` says.

        Args:
            canvas: int32 ``[slots]``.
            live: bool ``[slots]``; the slots that run.

        Returns:
            float32 ``[slots, vocabulary.size]``, with the logits of the last pass in which each slot was live.

        Raises:
            GenerationError: as ``denoise``.
        """

    def forget(self) -> None:
        """Drop the keys and values of all slots, not those of the prompt."""


class ClassLogits(Protocol):
    """What the logits of some slots say about classes of tokens, a row for each slot.

    The distribution of a row is the softmax of ``x = max(scale * (logit - largest of the row), LOWEST)``.
    """

    def log_norms(self) -> NDArray[np.float64]:
        """Return log of the sum of ``exp(x)`` over all tokens, ``[rows]``."""

    def maxima(self) -> NDArray[np.floating]:
        """Return the largest logit of each class, ``[rows, classes]``; minus infinity without tokens."""

    def log_sums(self) -> NDArray[np.float64]:
        """Return the log-probability of each class, ``[rows, classes]``; minus infinity without tokens."""

    def mean_logs(self) -> NDArray[np.float64]:
        """Return the sum of ``p log p`` over the tokens of each class, ``[rows, classes]``; 0 without tokens."""

    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32], /) -> NDArray[np.int32]:
        """Return the token of the largest logit of ``classes[i]``, which has some, in row ``rows[i]``.

        Of equal ones it is the first.
        """

    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64], /
    ) -> NDArray[np.int32]:
        """Draw a token of ``classes[i]``, which has some, in row ``rows[i]``, by its share.

        It is the first of its class, in the order of ids, at which the running share exceeds ``uniform[i]``.
        """


class SlotLogits(Protocol):
    """The logits of some slots of one canvas, a row for each, wherever they lie; immutable.

    They outlive the pass: later passes do not change them.  See ``ClassLogits`` for ``x``.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and tokens."""

    def largest(self) -> NDArray[np.floating]:
        """Return the largest logit of each row, ``[rows]``; NaN where there is one."""

    def log_norms(self, scale: float, /) -> NDArray[np.float64]:
        """Return log of the sum of ``exp(x)`` over all tokens, ``[rows]``."""

    def at(self, tokens: NDArray[np.int32], /) -> NDArray[np.floating]:
        """Return the logit of ``tokens[i]`` in row ``i``, ``[rows]``."""

    def by_class(self, classes: TokenClasses, scale: float, /) -> ClassLogits:
        """Return what the rows say about classes of tokens."""

    def leading(
        self, classes: TokenClasses, log_factors: NDArray[np.float64], scale: float, count: int, /
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the tokens of the largest ``x + log_factors[row, class of the token]`` in each row.

        Args:
            classes: of the tokens.
            log_factors: ``[rows, classes]``, minus infinity for 0.
            scale: of ``x``.
            count: how many tokens, at most as many as there are.

        Returns:
            Tokens by falling value, of equal ones the first, and the values; both ``[rows, count]``.
        """

    def take(self, rows: NDArray[np.intp], /) -> SlotLogits:
        """Return some of the rows."""

    def raised(self, rows: NDArray[np.intp], tokens: NDArray[np.int32], by: NDArray[np.float32], /) -> SlotLogits:
        """Return a copy in which the logit of ``tokens[i]`` in row ``rows[i]`` is more by ``by[i]``; none twice."""

    def host(self, row: int, /) -> NDArray[np.floating]:
        """Return a row, ``[tokens]``, not to be written to: copied where it is asked for first."""

    def host_all(self) -> NDArray[np.floating]:
        """Return all rows, ``[rows, tokens]``, not to be written to: copied where they are asked for first."""


@runtime_checkable
class ResidentDenoiser(Denoiser, Protocol):
    """A denoiser whose logits can stay where the model made them; optional.

    Next to nothing of them is needed elsewhere: how much the classes of a language weigh, and single tokens.
    """

    @property
    def is_resident(self) -> bool:
        """Whether that is worth while: a denoiser may have the methods and sit on a model whose logits are at hand."""

    def denoise_resident(self, canvases: Canvases, asked: NDArray[np.bool_], /) -> list[SlotLogits]:
        """Do what ``denoise`` does, and leave the logits where they are.

        Args:
            canvases: as for ``denoise``.
            asked: bool ``[n, slots]``, the slots that are asked about.

        Returns:
            For each canvas a row for each of its slots that is asked about, from left to right.

        Raises:
            GenerationError: as ``denoise``.
        """


@runtime_checkable
class ResidentCachingDenoiser(CachingDenoiser, ResidentDenoiser, Protocol):
    """A denoiser that can leave slots out of a pass, and logits where the model made them; optional."""

    def denoise_live_resident(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], asked: NDArray[np.bool_], /
    ) -> SlotLogits:
        """Do what ``denoise_live`` does, and leave the logits where they are.

        Args:
            canvas: as for ``denoise_live``.
            live: likewise.
            asked: bool ``[slots]``, the slots that are asked about.

        Returns:
            A row for each slot that is asked about, from left to right.

        Raises:
            GenerationError: as ``denoise``.
        """


@runtime_checkable
class DiffusionModel(Protocol):
    """A masked diffusion language model with its tokenizer."""

    @property
    def name(self) -> str:
        """What messages and reports call the model."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, as wide as the logits; MASK and padding are special tokens of it."""

    @property
    def mask_token(self) -> int:
        """The id of MASK, which no filled slot may hold."""

    @property
    def max_context(self) -> int | None:
        """The longest prompt and canvas together; None where the model states no bound."""

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the token ids of a prompt, perhaps none.

        Raises:
            ModelError: as ``LanguageModel.encode_prompt``.
        """

    def start(self, prompt_ids: Sequence[int], /) -> Denoiser:
        """Return a denoiser of canvases that follow a prompt.

        Raises:
            GenerationError: an id that the model lacks, or more tokens than its context holds.
        """


Layout = TypeVar("Layout")


@final
class TokenClasses:
    """A partition of a vocabulary; immutable.

    Args:
        of: int32 ``[vocabulary.size]``, the class of every token.
        count: how many classes there are, some perhaps without tokens.

    Attributes:
        sizes: int64 ``[count]``, tokens of each class.
    """

    __slots__ = ("__weakref__", "_layouts", "count", "of", "sizes")

    def __init__(self, of: NDArray[np.int32], count: int) -> None:
        self.of = of
        self.count = count
        self.sizes: NDArray[np.int64] = np.bincount(of, minlength=count)
        self._layouts: dict[Hashable, Any] = {}

    def layout(self, key: Hashable, make: Callable[[NDArray[np.int32], int], Layout]) -> Layout:
        """Return what ``make(of, count)`` returned for ``key``, which says how the classes are laid out and where."""
        if key not in self._layouts:
            self._layouts[key] = make(self.of, self.count)
        made: Layout = self._layouts[key]
        return made

    def __repr__(self) -> str:
        return f"<TokenClasses {self.count} of {len(self.of)} tokens>"
