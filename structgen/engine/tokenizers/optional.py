"""Import a library of a tokenizer format, or say plainly which one to install."""

from __future__ import annotations

import importlib
from typing import Any

from structgen.errors import VocabularyError

__all__ = ["need"]


def need(package: str, purpose: str) -> Any:  # an optional library has no types here
    """Import ``package``.

    Raises:
        VocabularyError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise VocabularyError(
            "vocabulary",
            f"package {package!r} is needed {purpose}",
            evidence=str(error),
            remedy=f"install {package!r} (it is in the extra 'tokenizers')",
        ) from error
