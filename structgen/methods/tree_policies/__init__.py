"""Published tree policies, and drafters that choose among drafters or how far they draft."""
