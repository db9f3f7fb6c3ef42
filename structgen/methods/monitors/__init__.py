"""Monitors: potentials that use the context of the output, or earlier parts of it."""

from structgen.methods.monitors.json_rules.order import ordered
from structgen.methods.monitors.json_rules.reference import refers, unique
from structgen.methods.monitors.monitor import Monitor, monitor

__all__ = ["Monitor", "monitor", "ordered", "refers", "unique"]
