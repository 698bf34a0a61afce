"""Speculation on the device: proposers, verification, the runner that joins them."""
