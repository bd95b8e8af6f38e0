"""Measures decoding: prompts, profiles of a model's costs, a local model, live servers."""
