"""Draft sources of the reference loop."""
