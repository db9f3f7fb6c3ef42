"""Tokens out of logits and masks: the most probable one, drawn ones, and the order of draws without replacement."""
