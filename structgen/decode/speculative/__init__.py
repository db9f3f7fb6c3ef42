"""Speculative decoding: drafters propose tokens, and one forward pass of the target verifies all of them."""
