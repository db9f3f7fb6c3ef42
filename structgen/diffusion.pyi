"""Options of decoding with diffusion models: samplers of canvases, drafting, reuse of passes, recordings."""

from structgen.decode.diffusion.forward_pass import (
    DelayedReuse as DelayedReuse,
    DualReuse as DualReuse,
    PrefixReuse as PrefixReuse,
)
from structgen.decode.diffusion.posterior import (
    Dingo as Dingo,
    Posterior as Posterior,
)
from structgen.decode.diffusion.replay import (
    Recorder as Recorder,
    replay_page as replay_page,
)
from structgen.decode.diffusion.unmasking import Unmasking as Unmasking
from structgen.methods.diffusion_drafting.adaptive_parallel import AdaptiveParallel as AdaptiveParallel
from structgen.methods.diffusion_drafting.canvas_draft import (
    FreeDave as FreeDave,
    SelfSpeculative as SelfSpeculative,
)

__all__ = [
    "AdaptiveParallel",
    "DelayedReuse",
    "Dingo",
    "DualReuse",
    "FreeDave",
    "Posterior",
    "PrefixReuse",
    "Recorder",
    "SelfSpeculative",
    "Unmasking",
    "replay_page",
]
