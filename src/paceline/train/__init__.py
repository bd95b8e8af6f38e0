"""Trains and derives drafts for a target."""
