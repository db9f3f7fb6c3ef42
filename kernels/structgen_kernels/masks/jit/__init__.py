"""Bodies of kernels: see ``structgen_kernels.jit``."""
