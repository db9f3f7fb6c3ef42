"""Published verifiers beside recursive rejection."""
