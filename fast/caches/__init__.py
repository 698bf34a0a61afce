"""Prefix caches behind one protocol."""
