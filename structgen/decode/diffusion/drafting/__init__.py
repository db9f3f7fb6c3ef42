"""Policies that draft several commits and let a model say how many of them stand."""
