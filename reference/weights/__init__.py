"""Checkpoint files to named tensors."""
