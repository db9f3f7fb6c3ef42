"""Canvases of a regular language: token classes, messages along the slots, and completions."""
