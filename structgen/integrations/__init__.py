"""Integrations with transformers and with model servers, imported on demand."""
