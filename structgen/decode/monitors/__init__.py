"""Monitors: potentials that know what is around the output, or what stood earlier in it."""

from structgen.decode.monitors.json_rules import ordered, refers, unique
from structgen.decode.monitors.monitor import Monitor, monitor

__all__ = ["Monitor", "monitor", "ordered", "refers", "unique"]
