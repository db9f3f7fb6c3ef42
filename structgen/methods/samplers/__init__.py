"""Published samplers of whole outputs that nothing in the core needs."""
