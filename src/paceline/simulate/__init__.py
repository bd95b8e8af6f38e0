"""Runs recorded answers without a target."""
