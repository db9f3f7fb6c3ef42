"""The settings of decoding that only autoregressive models have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from structgen.decode.potentials import Potential
from structgen.decode.potentials.lifted import Score
from structgen.decode.speculative.speculation import AnyDrafter
from structgen.engine import Constraint

__all__ = ["AnyPotential", "Autoregressive"]

AnyPotential: TypeAlias = Potential | Constraint | Score
"""A weight of outputs: a potential, a second constraint, or a function of the text."""


@final
@dataclass(frozen=True, slots=True)
class Autoregressive:
    """How an autoregressive model writes an output; ``Unmasking`` is its counterpart for diffusion models.

    Attributes:
        drafter: what proposes draft tokens, which the model verifies in one forward pass: a drafter, or a
            ``Speculation`` with all its settings; None drafts nothing.  ``"auto"`` combines drafters that cost next to
            nothing, and drafts only where that pays.  With the same seed the output is the same with all of them, but
            for drafters that sample draft tokens from a distribution of their own: with those the distribution of the
            output is the same.
        jump_forward: take forced tokens without forward passes of their own; the output is the same without.
        score_ending: spend a forward pass on forced steps at the end of the output, so that ``log_z`` covers them.
        potentials: what else the output has to fulfil: potentials, constraints, or functions of its text.  Samplers of
            tokens block what they forbid, and go back where nothing is left; scores need a sampler of whole outputs.
    """

    drafter: AnyDrafter = "auto"
    jump_forward: bool = True
    score_ending: bool = False
    potentials: Sequence[AnyPotential] = ()
