"""Choices of tokens from logits under masks: argmax, sampling, and sampling without replacement."""
