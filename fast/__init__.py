"""What runs: the engine, the server and the command line."""
