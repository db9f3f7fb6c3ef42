"""Infilling: texts with holes, filled by either kind of model so that the whole belongs to a grammar."""

from __future__ import annotations

from structgen.decode.infilling.frame import Frame, Hole, hole
from structgen.decode.infilling.infill import infill
from structgen.decode.infilling.markers import Markers, find_markers
from structgen.decode.infilling.order import Interruption
from structgen.decode.infilling.result import FilledHole, InfillResult

__all__ = ["FilledHole", "Frame", "Hole", "InfillResult", "Interruption", "Markers", "find_markers", "hole", "infill"]
