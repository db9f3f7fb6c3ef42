"""Drafters that are trained heads on the hidden states of the target model: Medusa, Hydra, EAGLE."""
