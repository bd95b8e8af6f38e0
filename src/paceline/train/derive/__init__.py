"""Cuts a draft model out of its target: fewer layers, a smaller vocabulary."""
