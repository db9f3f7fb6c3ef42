"""Drafters that copy: from the prompt, from the output itself, and from earlier outputs."""
