"""Published samplers of whole outputs that the core does not use."""
