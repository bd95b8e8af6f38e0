"""Reads what is in a draft checkpoint, without running or loading any of it."""
