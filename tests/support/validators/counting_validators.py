"""Validators that count how often they run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import AfterValidator

CALLS: Counter[str] = Counter()


def counted(name: str) -> Any:
    """A validator that lets every value pass, and counts it under ``name``."""

    def count(value: Any) -> Any:
        CALLS[name] += 1
        return value

    return AfterValidator(count)
