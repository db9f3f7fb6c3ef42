"""Options of decoding with diffusion models: samplers of canvases, drafting, reuse of passes, recordings."""

from structgen.decode.diffusion.commit_policy import Unmasking
from structgen.decode.diffusion.forward_pass import DelayedReuse, DualReuse, PrefixReuse
from structgen.decode.diffusion.posterior import Dingo, Posterior
from structgen.decode.diffusion.replay import Recorder, replay_page
from structgen.methods.diffusion_drafting.adaptive_parallel import AdaptiveParallel
from structgen.methods.diffusion_drafting.canvas_draft import FreeDave, SelfSpeculative

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
