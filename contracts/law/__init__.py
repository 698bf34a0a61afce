"""The law of a verify: its definition in plain loops, and its exact integration over the random numbers."""
