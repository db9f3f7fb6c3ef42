"""Speculative decoding: which draft tokens of a tree are accepted."""
