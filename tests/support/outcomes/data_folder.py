"""The folder of the test data that do not belong to the project."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_folder"]


def data_folder() -> Path:
    """Return ``$STRUCTGEN_DATA``, or the folder beside the checkout; it need not exist."""
    chosen = os.environ.get("STRUCTGEN_DATA")
    return Path(chosen) if chosen else Path(__file__).resolve().parents[4] / "shared" / "data"
