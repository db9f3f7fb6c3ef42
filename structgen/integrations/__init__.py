"""Constraints inside other people's engines: one module for each, imported on demand."""
