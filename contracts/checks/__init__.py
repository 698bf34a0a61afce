"""The contracts as plain functions that raise AssertionError, so that tests and mutants call the same ones."""
