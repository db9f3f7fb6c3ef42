"""Training-free strategies: they change the next-token distribution, look ahead, search, select or decide.

None of them samples from the target distribution (``lossless`` is False); every output is complete and valid.
"""

from structgen.methods.strategies.adaptive_sampler import BregmanTopK, Scheduled, Situation
from structgen.methods.strategies.branch_ops import Boundary
from structgen.methods.strategies.contrastive import Contrastive, ContrastiveSession
from structgen.methods.strategies.decision_rule import (
    FBeta,
    HierarchicalFBeta,
    LeastCost,
    MostProbable,
    NearestMean,
    Quantile,
    Rule,
)
from structgen.methods.strategies.foresight import Foresight
from structgen.methods.strategies.guided_search import AStar, QualityBeam, TransferQ
from structgen.methods.strategies.label import Decide, LabelDistribution, label_distribution
from structgen.methods.strategies.repetition import LookBack, Momentum
from structgen.methods.strategies.superposed import Superposed
from structgen.methods.strategies.thinking import FirstFinish, Thinking
from structgen.methods.strategies.token_chooser import FreeText, Switching, SwitchingReport
from structgen.methods.strategies.uncertainty import AdaDec, Cautious, Trace, learn_threshold, trace

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
    "LabelDistribution",
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
    "label_distribution",
    "learn_threshold",
    "trace",
]
