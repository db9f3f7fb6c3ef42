"""Models that llama.cpp runs, from GGUF files; see ``structgen.load_model(..., runtime="llama.cpp")``."""
