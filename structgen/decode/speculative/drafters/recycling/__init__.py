"""Drafters that learn from the target's own rows of logits."""
