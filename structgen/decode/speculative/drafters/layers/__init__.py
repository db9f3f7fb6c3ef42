"""Drafts of a model on itself: the target's own network, with some of its layers left out."""
