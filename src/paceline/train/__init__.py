"""Fitting small parts to a target, on text that the target wrote."""
