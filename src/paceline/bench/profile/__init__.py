"""Measures what a forward costs by its width, and makes a policy from it."""
