"""Commit policies that draft several steps and let one forward pass say how many of them stand."""
