"""The interface of diffusion language models that the decode layer uses.

A ``DiffusionModel`` is shared and immutable.  A ``Denoiser`` belongs to one prompt and returns for every slot of a
canvas a distribution over tokens given the tokens of the other slots.  ``TokenClasses`` group the tokens that a grammar
does not distinguish.
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
"""Logits (after temperature) are clamped to this many nats below the largest logit of their slot."""

Canvases: TypeAlias = "NDArray[np.int32]"
"""Token ids, ``[canvases, slots]``; ``DiffusionModel.mask_token`` in a slot that is free."""


@runtime_checkable
class Denoiser(Protocol):
    """A diffusion model that has read one prompt; not thread-safe.

    Invariant: the result of ``denoise`` for a canvas depends on the prompt and that canvas alone (up to rounding of
        float32 sums), not on earlier calls or on other canvases of the same call.
    """

    @property
    def forwards(self) -> int:
        """Forward passes that were run; canvases that share a pass count once."""

    def denoise(self, canvases: Canvases, /, *, start: int = 0, stop: int | None = None) -> Logits:
        """Return the logits of the slots from ``start`` to ``stop`` of each canvas, in one forward pass.

        Row ``i`` of a canvas is about slot ``start + i``, also where the network predicts the next position.

        Args:
            canvases: int32 ``[n, slots]``.
            start: the first queried slot.
            stop: the slot after the last queried one; None is the end of the canvas.

        Returns:
            float32 ``[n, stop - start, vocabulary.size]``; the caller owns the array.

        Raises:
            GenerationError: no canvas, an id that the model lacks, or more slots than fit its context.
        """

    def close(self) -> None:
        """Free the caches; the denoiser may be used again afterwards."""


@runtime_checkable
class CachingDenoiser(Denoiser, Protocol):
    """A denoiser that can skip slots in a pass and reuse their keys and values of an earlier pass; optional.

    The result is an approximation: the keys and values of skipped slots are those of an earlier canvas.
    """

    def denoise_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /) -> Logits:
        """Run the live slots of one canvas and keep their new keys and values.

        Slots that no call has run yet are always live.

        Args:
            canvas: int32 ``[slots]``.
            live: bool ``[slots]``; the slots that run.

        Returns:
            float32 ``[slots, vocabulary.size]``, with the logits of the last pass in which each slot was live.

        Raises:
            GenerationError: as ``denoise``.
        """

    def forget(self) -> None:
        """Drop the keys and values of all slots, but keep those of the prompt."""


class ClassLogits(Protocol):
    """Scores of token classes from the logits of some slots, one row per slot.

    The distribution of a row is the softmax of ``x = max(scale * (logit - largest of the row), LOWEST)``.
    """

    def log_norms(self) -> NDArray[np.float64]:
        """Return log of the sum of ``exp(x)`` over all tokens, ``[rows]``."""

    def maxima(self) -> NDArray[np.floating]:
        """Return the largest logit of each class, ``[rows, classes]``; minus infinity for an empty class."""

    def log_sums(self) -> NDArray[np.float64]:
        """Return the log-probability of each class, ``[rows, classes]``; minus infinity for an empty class."""

    def mean_logs(self) -> NDArray[np.float64]:
        """Return the sum of ``p log p`` over the tokens of each class, ``[rows, classes]``; 0 for an empty class."""

    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32], /) -> NDArray[np.int32]:
        """Return the token with the largest logit in the nonempty ``classes[i]`` in row ``rows[i]``.

        Ties go to the lowest id.
        """

    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64], /
    ) -> NDArray[np.int32]:
        """Sample a token of the nonempty ``classes[i]`` in row ``rows[i]`` from the distribution within the class.

        The token is the first in the order of ids at which the cumulative probability exceeds ``uniform[i]``.
        """


class SlotLogits(Protocol):
    """The logits of some slots of one canvas, one row per slot, on the host or on a device; immutable.

    Later passes do not change them.  See ``ClassLogits`` for ``x``.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and tokens."""

    def largest(self) -> NDArray[np.floating]:
        """Return the largest logit of each row, ``[rows]``; NaN for a row with a NaN."""

    def log_norms(self, scale: float, /) -> NDArray[np.float64]:
        """Return log of the sum of ``exp(x)`` over all tokens, ``[rows]``."""

    def at(self, tokens: NDArray[np.int32], /) -> NDArray[np.floating]:
        """Return the logit of ``tokens[i]`` in row ``i``, ``[rows]``."""

    def by_class(self, classes: TokenClasses, scale: float, /) -> ClassLogits:
        """Return the scores of token classes."""

    def leading(
        self, classes: TokenClasses, log_factors: NDArray[np.float64], scale: float, count: int, /
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the tokens of the largest ``x + log_factors[row, class of the token]`` in each row.

        Args:
            classes: the partition of the tokens.
            log_factors: ``[rows, classes]``, minus infinity for a factor of 0.
            scale: the scale in ``x``.
            count: number of tokens, at most the vocabulary's size.

        Returns:
            Tokens by falling value, ties by ascending id, and the values; both ``[rows, count]``.
        """

    def take(self, rows: NDArray[np.intp], /) -> SlotLogits:
        """Return some of the rows."""

    def raised(self, rows: NDArray[np.intp], tokens: NDArray[np.int32], by: NDArray[np.float32], /) -> SlotLogits:
        """Return a copy with ``by[i]`` added to the logit of ``tokens[i]`` in row ``rows[i]``; no pair twice."""

    def host(self, row: int, /) -> NDArray[np.floating]:
        """Return a row ``[tokens]``, read-only; the first call for a row copies it."""

    def host_all(self) -> NDArray[np.floating]:
        """Return all rows ``[rows, tokens]``, read-only; the first call copies them."""


@runtime_checkable
class ResidentDenoiser(Denoiser, Protocol):
    """A denoiser whose logits can stay on the device; optional.

    The host needs little of them: the scores of token classes, and single tokens.
    """

    @property
    def is_resident(self) -> bool:
        """Whether the logits stay on the device; a denoiser may have the methods while its logits are on the host."""

    def denoise_resident(self, canvases: Canvases, queried: NDArray[np.bool_], /) -> list[SlotLogits]:
        """Run ``denoise`` with logits that stay on the device.

        Args:
            canvases: as for ``denoise``.
            queried: bool ``[n, slots]``, the queried slots.

        Returns:
            For each canvas one row per queried slot, from left to right.

        Raises:
            GenerationError: as ``denoise``.
        """


@runtime_checkable
class ResidentCachingDenoiser(CachingDenoiser, ResidentDenoiser, Protocol):
    """A denoiser that can skip slots in a pass and leave logits on the device; optional."""

    def denoise_live_resident(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], queried: NDArray[np.bool_], /
    ) -> SlotLogits:
        """Run ``denoise_live`` with logits that stay on the device.

        Args:
            canvas: as for ``denoise_live``.
            live: as for ``denoise_live``.
            queried: bool ``[slots]``, the queried slots.

        Returns:
            One row per queried slot, from left to right.

        Raises:
            GenerationError: as ``denoise``.
        """


@runtime_checkable
class DiffusionModel(Protocol):
    """A masked diffusion language model with its tokenizer."""

    @property
    def name(self) -> str:
        """The model's name in messages and reports."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, as wide as the logits; MASK and padding are special tokens."""

    @property
    def mask_token(self) -> int:
        """The id of MASK, which no filled slot may hold."""

    @property
    def max_context(self) -> int | None:
        """The maximum length of prompt and canvas together; None: the model states no bound."""

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the token ids of a prompt, possibly none.

        Raises:
            ModelError: as ``LanguageModel.encode_prompt``.
        """

    def start(self, prompt_ids: Sequence[int], /) -> Denoiser:
        """Return a denoiser of canvases that follow a prompt.

        Raises:
            GenerationError: an id that the model lacks, or more tokens than fit its context.
        """


Layout = TypeVar("Layout")


@final
class TokenClasses:
    """A partition of a vocabulary; immutable.

    Args:
        of: int32 ``[vocabulary.size]``, the class of every token.
        count: number of classes, including empty ones.

    Attributes:
        sizes: int64 ``[count]``, the number of tokens of each class.
    """

    __slots__ = ("__weakref__", "_layouts", "count", "of", "sizes")

    def __init__(self, of: NDArray[np.int32], count: int) -> None:
        self.of = of
        self.count = count
        self.sizes: NDArray[np.int64] = np.bincount(of, minlength=count)
        self._layouts: dict[Hashable, Any] = {}

    def layout(self, key: Hashable, make: Callable[[NDArray[np.int32], int], Layout]) -> Layout:
        """Return ``make(of, count)``, cached by ``key``: the form of the layout and its device."""
        if key not in self._layouts:
            self._layouts[key] = make(self.of, self.count)
        made: Layout = self._layouts[key]
        return made

    def __repr__(self) -> str:
        return f"<TokenClasses {self.count} of {len(self.of)} tokens>"
