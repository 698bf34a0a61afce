"""Device memory with its price, one kind of per-request state a file."""
