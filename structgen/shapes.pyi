"""Tree policies: how large a tree of draft tokens is, and where it branches."""

from structgen.decode.speculative.fixed_tree import Chain, Fixed, Stop
from structgen.decode.speculative.tree_policy import DraftDistribution, DraftDistribution as Law, Growth, Shape
from structgen.methods.tree_policies.bandit import EXP3, UCB, Arms, Bandit, Policy
from structgen.methods.tree_policies.draft_length import EntropyStop, Goodput, Pearl, RejectionStop, Survival
from structgen.methods.tree_policies.dynamic_tree import DySpec, IndependentDraws, OptTree
from structgen.methods.tree_policies.sequoia import DraftMemory, OptimalForm, RankAcceptance, Sequoia, optimal_form

__all__ = [
    "EXP3",
    "UCB",
    "Arms",
    "Bandit",
    "Chain",
    "DraftDistribution",
    "DraftMemory",
    "DySpec",
    "EntropyStop",
    "Fixed",
    "Goodput",
    "Growth",
    "IndependentDraws",
    "Law",
    "OptTree",
    "OptimalForm",
    "Pearl",
    "Policy",
    "RankAcceptance",
    "RejectionStop",
    "Sequoia",
    "Shape",
    "Stop",
    "Survival",
    "optimal_form",
]
