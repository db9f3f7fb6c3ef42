"""In which order holes are filled from left to right models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

__all__ = ["Interruption", "Order"]


@final
@dataclass(frozen=True, slots=True)
class Interruption:
    """Fill holes from left to right, but where the model becomes unsure, write what comes last in the hole first.

    As soon as the most probable token that is allowed has a probability below ``below``, the hole is left: what fills
    its end is written, beginning with ``suffix``, and then what is between.  The tokens that are left of the hole are
    divided: the end may use half of them, and what it leaves is for the middle.  A hole is interrupted once at most,
    and only where ``suffix`` can stand there.

    Attributes:
        below: a probability; 0 interrupts nowhere, anything above 1 at once.
        suffix: the text that the end begins with; it may be empty.

    Raises:
        ValueError: ``below`` is negative or no number.

    Source: L. Zheng et al., "Self-Infilling Code Generation" (ICML 2024, arXiv 2311.17972), without its loop that
        writes the beginning anew.
    """

    below: float = 0.25
    suffix: str = ""

    def __post_init__(self) -> None:
        if not self.below >= 0:
            raise ValueError(f"Interruption: below must be a probability; found {self.below!r}")


Order: TypeAlias = "Literal['forward', 'backward'] | Interruption"
"""``"forward"``: the first hole first.  ``"backward"``: the last hole first, so that the others know what is behind."""
