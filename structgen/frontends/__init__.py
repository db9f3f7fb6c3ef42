"""What people write, compiled to the grammar IR: one package for each notation, and loading by suffix."""
