"""Commit policies that draft several steps and verify the drafts in one forward pass."""
