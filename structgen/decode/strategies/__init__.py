"""Strategies that need no training: they change the law of the next token, look ahead, search, select or decide.

None of them draws from the target law (``lossless`` is False), and every output is complete and within the grammar.
"""

from structgen.decode.strategies.a_star import AStar
from structgen.decode.strategies.adadec import AdaDec, Trace, learn_threshold, trace
from structgen.decode.strategies.boundary import Boundary
from structgen.decode.strategies.cautious import Cautious
from structgen.decode.strategies.contrastive import Contrastive, ContrastiveSession
from structgen.decode.strategies.decisions import (
    FBeta,
    HierarchicalFBeta,
    LeastCost,
    MostProbable,
    NearestMean,
    Quantile,
    Rule,
)
from structgen.decode.strategies.first_finish import FirstFinish
from structgen.decode.strategies.foresight import Foresight
from structgen.decode.strategies.labels import Decide, LabelLaw, label_law
from structgen.decode.strategies.quality import QualityBeam, TransferQ
from structgen.decode.strategies.repetition import LookBack, Momentum
from structgen.decode.strategies.schedule import Scheduled, Situation
from structgen.decode.strategies.superposed import Superposed
from structgen.decode.strategies.switching import Switching, SwitchingReport
from structgen.decode.strategies.thinking import Thinking
from structgen.decode.strategies.top_k import BregmanTopK
from structgen.decode.strategies.walk import FreeText

__all__ = [
    "AStar",
    "AdaDec",
    "Boundary",
    "BregmanTopK",
    "Cautious",
    "Contrastive",
    "ContrastiveSession",
    "Decide",
    "FBeta",
    "FirstFinish",
    "Foresight",
    "FreeText",
    "HierarchicalFBeta",
    "LabelLaw",
    "LeastCost",
    "LookBack",
    "Momentum",
    "MostProbable",
    "NearestMean",
    "QualityBeam",
    "Quantile",
    "Rule",
    "Scheduled",
    "Situation",
    "Superposed",
    "Switching",
    "SwitchingReport",
    "Thinking",
    "Trace",
    "TransferQ",
    "label_law",
    "learn_threshold",
    "trace",
]
