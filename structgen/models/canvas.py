"""The checks that every denoiser makes before a forward pass, and how MASK is found in a vocabulary."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from structgen.errors import GenerationError, ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol.diffusion import Canvases

__all__ = ["CanvasLimits", "find_mask"]

_MASK_NAMES: Final = ("<mask>", "[MASK]", "<|mask|>", "<|mdm_mask|>", "<MASK>", "[mask]")


class CanvasLimits(NamedTuple):
    """What a model can take, for the checks of its denoisers.

    Attributes:
        name: the model, for messages.
        id_limit: one more than the largest id that the model embeds.
        max_context: the longest prompt and canvas together; None where there is no bound.
    """

    name: str
    id_limit: int
    max_context: int | None

    def check_prompt(self, prompt_ids: Sequence[int], /) -> list[int]:
        """Return the ids of a prompt as plain ints.

        Raises:
            GenerationError: an id that the model lacks, or more tokens than its context holds.
        """
        ids = []
        for token in prompt_ids:
            try:
                ids.append(operator.index(token))
            except TypeError as error:
                raise self._error("a token of the prompt is no integer", f"found {token!r:.40}") from error
        for token in ids:
            self._check_range(token, token)
        if self.max_context is not None and len(ids) > self.max_context:
            raise self._error(
                "the prompt does not fit into its context",
                f"{len(ids)} tokens; the context holds {self.max_context}",
                "shorten the prompt",
            )
        return ids

    def check_canvases(self, canvases: Canvases, /, *, prompt_tokens: int) -> Canvases:
        """Return canvases as an int32 array ``[n, slots]``.

        Raises:
            GenerationError: no canvas or no slot, an id that the model lacks, or more slots than its context holds
                behind a prompt of ``prompt_tokens``.
        """
        found = np.asarray(canvases)
        if found.ndim != 2 or not np.issubdtype(found.dtype, np.integer):
            raise self._error(
                "canvases are int32 [canvases, slots]",
                f"found {found.dtype} {list(found.shape)}",
                "pass one canvas as canvas[None]",
            )
        if 0 in found.shape:
            raise self._error("there is no canvas", f"found the shape {list(found.shape)}", "pass at least one slot")
        self._check_range(int(found.min()), int(found.max()))
        if self.max_context is not None and prompt_tokens + found.shape[1] > self.max_context:
            raise self._error(
                "prompt and canvas do not fit into its context",
                f"{prompt_tokens} tokens and {found.shape[1]} slots; the context holds {self.max_context}",
                "shorten the prompt or the canvas",
            )
        return found.astype(np.int32, copy=False)

    def check_live(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /, *, prompt_tokens: int
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return one canvas and its live slots, checked as ``CachingDenoiser.denoise_live`` wants them.

        Raises:
            GenerationError: as ``check_canvases``; or ``live`` is no bool ``[slots]``.
        """
        found = np.asarray(canvas)
        row: NDArray[np.int32] = self.check_canvases(found[None], prompt_tokens=prompt_tokens)[0]
        mask = np.asarray(live)
        if mask.dtype != np.bool_ or mask.shape != row.shape:
            raise self._error(
                "live slots are bool [slots]", f"found {mask.dtype} {list(mask.shape)} for {len(row)} slots"
            )
        return row, mask

    def check_asked(self, canvases: NDArray[np.int32], asked: NDArray[np.bool_], /) -> NDArray[np.bool_]:
        """Return which slots are asked about.

        Raises:
            GenerationError: ``asked`` is no bool of the shape of ``canvases``.
        """
        mask = np.asarray(asked)
        if mask.dtype != np.bool_ or mask.shape != np.shape(canvases):
            raise self._error(
                "the slots that are asked about are bool, of the shape of what is asked",
                f"found {mask.dtype} {list(mask.shape)} for {list(np.shape(canvases))}",
            )
        return mask

    def check_bounds(self, slots: int, start: int, stop: int | None, /) -> tuple[int, int]:
        """Return the slots that are asked about as ``(start, stop)``.

        Raises:
            GenerationError: there are none, or they are not on the canvas.
        """
        end = slots if stop is None else stop
        if not 0 <= start < end <= slots:
            raise self._error(
                "the slots that are asked about are not on the canvas",
                f"found start={start}, stop={stop} of {slots} slots",
            )
        return operator.index(start), operator.index(end)

    def _check_range(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= self.id_limit:
            raise self._error(
                f"it has no token {lowest if lowest < 0 else highest}", f"its ids are 0 to {self.id_limit - 1}"
            )

    def _error(self, problem: str, evidence: str, remedy: str = "") -> GenerationError:
        return GenerationError(f"model {self.name!r}", problem, evidence=evidence, remedy=remedy)


def find_mask(vocabulary: Vocabulary, mask_token: int | None) -> int:
    """Return the id of MASK: ``mask_token``, or the special token that is spelled like one.

    Raises:
        ModelError: ``mask_token`` is no special token or ends a text, or no special token is spelled like MASK.
    """
    special = vocabulary.special
    if mask_token is None:
        mask_token = next((token for name in _MASK_NAMES for token, text in special.items() if text == name), None)
    if mask_token is None:
        raise ModelError(
            "vocabulary",
            "none of its special tokens is MASK",
            evidence=f"looked for {', '.join(_MASK_NAMES)}",
            remedy="pass mask_token=, or name one: Vocabulary(..., special={id: '<mask>'})",
        )
    token = operator.index(mask_token)
    if token not in special or token in vocabulary.eos:
        raise ModelError(
            f"mask_token={token}",
            "it ends a text" if token in vocabulary.eos else "it is no special token of the vocabulary",
            evidence=f"its special tokens are {', '.join(map(str, special)) or 'none'}"[:200],
            remedy="make the token special: Vocabulary(..., special={id: '<mask>'})",
        )
    return token
