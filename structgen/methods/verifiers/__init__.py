"""Published verifiers, in addition to recursive rejection."""
