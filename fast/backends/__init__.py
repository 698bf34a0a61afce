"""The operations a target is made of, one backend a file."""
