"""Speculative decoding: tokens that are drafted, and told right or wrong by one forward pass over all of them."""
