"""SQL for a live database: its catalogue's names as a potential, and its SELECT statements as a grammar."""
