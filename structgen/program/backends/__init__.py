"""How one answer is produced by each kind of model: token by token, on a canvas, or by a server."""
