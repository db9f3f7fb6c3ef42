"""Trained heads that guess several tokens ahead from a model's last hidden states.

Importing this package imports no torch; ``load_heads`` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from structgen.errors import ModelError
from structgen.models.heads.protocol import DraftHeads, HeadSession
from structgen.models.placement import require

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel

__all__ = ["DraftHeads", "HeadSession", "load_heads"]


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
    from structgen.models.heads.loading import heads_in
    from structgen.models.llama_model import LlamaModel

    if not isinstance(model, LlamaModel):
        raise ModelError(
            f"model {getattr(model, 'name', model)!r}",
            "heads need a model that shows its hidden states",
            evidence=f"found {type(model).__name__}",
            remedy="use the embedded model or another LlamaModel",
        )
    return heads_in(Path(folder), model)
