"""How much of a tree of draft tokens, or of drawn drafts, is taken."""
