"""Sampling and verification: laws, random numbers, verdicts, cuts, and the loop that uses them."""
