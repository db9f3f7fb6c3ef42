"""The Llama network in plain torch, and the embedded model that runs on it."""
