"""Samplers that are exact over whole trajectories of canvases, not only over single steps."""
