"""Infilling: texts with holes, filled by either kind of model so that the whole is a string of a grammar."""

from __future__ import annotations

from structgen.methods.infilling.autoregressive import Interruption, Markers, find_markers
from structgen.methods.infilling.frame import FilledHole, Frame, Hole, InfillResult, hole
from structgen.methods.infilling.infill import infill

__all__ = ["FilledHole", "Frame", "Hole", "InfillResult", "Interruption", "Markers", "find_markers", "hole", "infill"]
