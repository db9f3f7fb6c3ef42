"""Canvases of a context-free language: charts as boolean matrix products."""
