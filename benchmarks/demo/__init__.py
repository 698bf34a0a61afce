"""Training of the demo checkpoints that ship with the package."""
