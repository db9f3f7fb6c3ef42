"""A small masked diffusion model that comes with the package, and the tasks that it was trained for."""

from __future__ import annotations

from structgen.models.diffusion.embedded.model import EmbeddedDiffusion, load_embedded_diffusion
from structgen.models.diffusion.embedded.tasks import TASKS, Example, Split, Task, examples

__all__ = ["TASKS", "EmbeddedDiffusion", "Example", "Split", "Task", "examples", "load_embedded_diffusion"]
