"""Transformers models: one row of tokens, our attention over one preallocated cache."""
