"""Tree policies: how large a tree of draft tokens is, and where it branches."""

from structgen.decode.speculative.fixed_tree import (
    Chain as Chain,
    Fixed as Fixed,
    Stop as Stop,
)
from structgen.decode.speculative.tree_policy import (
    DraftDistribution as DraftDistribution,
    DraftDistribution as Law,
    Growth as Growth,
    Shape as Shape,
)
from structgen.methods.tree_policies.bandit import (
    EXP3 as EXP3,
    UCB as UCB,
    Arms as Arms,
    Bandit as Bandit,
    Policy as Policy,
)
from structgen.methods.tree_policies.draft_length import (
    EntropyStop as EntropyStop,
    Goodput as Goodput,
    Pearl as Pearl,
    RejectionStop as RejectionStop,
    Survival as Survival,
)
from structgen.methods.tree_policies.draft_memory import DraftMemory as DraftMemory
from structgen.methods.tree_policies.dynamic_tree import (
    DySpec as DySpec,
    OptTree as OptTree,
)
from structgen.methods.tree_policies.independent_sampling import IndependentDraws as IndependentDraws
from structgen.methods.tree_policies.sequoia import (
    OptimalForm as OptimalForm,
    RankAcceptance as RankAcceptance,
    Sequoia as Sequoia,
    optimal_form as optimal_form,
)

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
