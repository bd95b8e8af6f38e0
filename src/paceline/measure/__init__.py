"""Measuring on a user's own prompts: what a draft brings, and whether it changed anything."""
