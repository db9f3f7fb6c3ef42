"""Parts of a grammar with a temperature of their own (``Tempered``): which sampler draws there."""

from __future__ import annotations

from dataclasses import replace

from structgen.decode.gumbel_max import GumbelMax
from structgen.decode.sampler import Greedy, Multinomial, Sampler

__all__ = ["at_temperature", "check_tempering"]

_GREEDY = Greedy()


def at_temperature(sampler: Sampler, temperature: float) -> Sampler:
    """``sampler`` with another temperature: 0 is the most probable token, whatever the sampler.

    Truncation (top-k, top-p, min-p) stays as it is.  ``Greedy`` has the temperature 0, so a part with a higher one is
    drawn also where the rest is not.

    Raises:
        ValueError: the sampler has no temperature; see ``check_tempering``.
    """
    if temperature == 0:
        return _GREEDY
    match sampler:
        case Greedy():
            return Multinomial(temperature)
        case Multinomial():
            return replace(sampler, temperature=temperature)
        case GumbelMax():
            return GumbelMax(replace(sampler.shape, temperature=temperature))
    raise ValueError(
        f"sampler={sampler!r:.60} has no temperature that a part of the grammar could set; "
        "take Greedy(), Multinomial() or GumbelMax(), or leave temperatures out of the grammar"
    )


def check_tempering(sampler: object) -> None:
    """Check that the temperatures of a grammar can be heeded.

    Raises:
        ValueError: the sampler has no temperature, or writes whole outputs.
    """
    if isinstance(sampler, (Greedy, Multinomial, GumbelMax)):
        return
    raise ValueError(
        f"sampler={sampler!r:.60} cannot heed the temperatures of parts of the grammar; "
        "take Greedy(), Multinomial() or GumbelMax(), or leave temperatures out of the grammar"
    )
