"""What a decoder needs from a diffusion language model, and nothing more.

A masked diffusion language model fills a *canvas*: a row of slots, each holding a token or MASK.  Asked about a canvas
it answers with one law over tokens for every slot, all at once, given what stands in the other slots.  As with
autoregressive models, no tensor of any framework crosses the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol import Logits, Prompt

__all__ = ["CachingDenoiser", "Canvases", "Denoiser", "DiffusionModel"]

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
