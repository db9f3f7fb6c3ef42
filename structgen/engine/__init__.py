"""The engine: tokens, compilation, masks."""

from structgen.engine.constraint import Constraint, compile
from structgen.engine.matcher import Explanation, Matcher, fill_mask_trees, fill_masks, row_temperatures
from structgen.engine.report import Report
from structgen.engine.vocabulary import Vocabulary

__all__ = [
    "Constraint",
    "Explanation",
    "Matcher",
    "Report",
    "Vocabulary",
    "compile",
    "fill_mask_trees",
    "fill_masks",
    "row_temperatures",
]
