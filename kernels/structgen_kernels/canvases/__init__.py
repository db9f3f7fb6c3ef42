"""Canvases of a regular language: classes of tokens, messages along the slots, completions."""
