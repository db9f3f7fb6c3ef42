"""How large a tree of guesses is, where it branches, and who is asked for it.

``growth`` is the interface between drafters that can say laws and shapes that make trees of them (``Chain``,
``Fixed``, ``OptTree``, ``DySpec``, ``Sequoia``, ``IndependentDraws``).  ``Bandit``, ``Goodput`` and ``Pearl`` are
drafters that ask others.
"""

from structgen.decode.speculative.shapes.acceptance import RankAcceptance
from structgen.decode.speculative.shapes.arms import EXP3, UCB, Arms, Policy
from structgen.decode.speculative.shapes.bandit import Bandit
from structgen.decode.speculative.shapes.chain import Chain
from structgen.decode.speculative.shapes.dyspec import DySpec
from structgen.decode.speculative.shapes.fixed import Fixed
from structgen.decode.speculative.shapes.goodput import Goodput, Survival
from structgen.decode.speculative.shapes.growth import Growth, Law, Shape
from structgen.decode.speculative.shapes.independent_draws import IndependentDraws
from structgen.decode.speculative.shapes.memory import DraftMemory
from structgen.decode.speculative.shapes.opt_tree import OptTree
from structgen.decode.speculative.shapes.pearl import Pearl
from structgen.decode.speculative.shapes.sequoia import OptimalForm, Sequoia, optimal_form
from structgen.decode.speculative.shapes.stop import EntropyStop, RejectionStop, Stop

__all__ = [
    "EXP3",
    "UCB",
    "Arms",
    "Bandit",
    "Chain",
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
