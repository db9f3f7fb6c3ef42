"""Trained heads that draft several tokens from a model's last hidden states.

What a drafter needs of them, and how they are loaded.

Importing this module imports no torch; ``load_heads`` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from structgen.errors import ModelError
from structgen.models.placement import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.protocol import LanguageModel, Logits, States, TrimmedHead

__all__ = ["DraftHeads", "HeadSession", "load_heads"]


@runtime_checkable
class HeadSession(Protocol):
    """Heads behind one sequence; not for use by two threads at a time."""

    def follow(self, position: int, token_ids: Sequence[int], states: States, /) -> None:
        """Stand behind the last of some tokens.

        What it holds of earlier tokens stays if they reach up to these, and is dropped otherwise.

        Args:
            position: of the first.
            token_ids: at least one.
            states: what the network's last layer made of each, ``[len(token_ids), width]``, before the final norm.
        """

    def logits(self, paths: Sequence[Sequence[int]], /, *, head: TrimmedHead | None = None) -> Logits:
        """Return what may follow each of some continuations.

        Args:
            paths: tokens behind the sequence: from one to ``DraftHeads.depth`` of them, all as many.
            head: what to compute; None for all tokens.

        Returns:
            float32 ``[len(paths), V]``, or ``[len(paths), len(head.ids)]``; the caller owns the array.

        Raises:
            GenerationError: nothing is followed yet, paths are of different lengths, or too long.
        """


@runtime_checkable
class DraftHeads(Protocol):
    """Trained heads of a model: unchanging, so any number of sequences may share them."""

    @property
    def name(self) -> str:
        """What messages and statistics call them."""

    @property
    def depth(self) -> int | None:
        """How many tokens a path may have at most; None where there is no bound."""

    @property
    def width(self) -> int:
        """How long the states are that they were trained for."""

    def start(self) -> HeadSession:
        """Return a session that follows nothing yet."""


def load_heads(folder: str | Path, model: LanguageModel) -> DraftHeads:
    """Load heads that were trained for a model.

    A folder holds ``config.json`` and one or more files of safetensors.  Which heads they are, the configuration says:

    * ``medusa_num_heads`` (and ``medusa_num_layers``): Medusa, with the names of its own files (``0.0.linear.weight``).
    * ``hydra_num_heads`` (and ``hydra_num_layers``): heads that know the tokens before (``HydraHeads``).
    * ``architectures`` that begin with ``Eagle``, or ``fc.weight`` among the weights: EAGLE, with its own names.

    Args:
        folder: see above.
        model: what they were trained for: a ``LlamaModel``, whose embedding and output head they may use.

    Raises:
        ModelError: a file is missing or damaged, the heads are of another kind or for another model.
    """
    require("torch", "safetensors")
    from structgen.methods.drafters.heads.checkpoint import heads_in
    from structgen.models.llama.model import LlamaModel

    if not isinstance(model, LlamaModel):
        raise ModelError(
            f"model {getattr(model, 'name', model)!r}",
            "heads need a model that shows its hidden states",
            evidence=f"found {type(model).__name__}",
            remedy="use the embedded model or another LlamaModel",
        )
    return heads_in(Path(folder), model)
