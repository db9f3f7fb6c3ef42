"""Verifiers: what makes of guesses a draw from the target's own law."""
