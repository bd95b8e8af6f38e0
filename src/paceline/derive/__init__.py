"""Draft models made from their target: fewer layers, fewer tokens."""
