"""What may be written: the grammar IR and its front ends."""
