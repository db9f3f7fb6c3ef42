"""Masks on a device: rows by number, the pool that holds them, and what applies them."""
