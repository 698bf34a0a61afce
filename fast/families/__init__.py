"""The same families in fast parts, one folder each."""
