"""Benches a local model: every prompt with and without drafts, interleaved."""
