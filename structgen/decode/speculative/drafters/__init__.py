"""Drafters: where guesses come from."""
