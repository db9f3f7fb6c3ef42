"""How much of a tree of guesses, or of drawn drafts, is taken."""
