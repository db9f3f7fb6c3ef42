"""SQL of a live database: names of its catalogue as a potential, and its SELECT statements as a grammar."""
