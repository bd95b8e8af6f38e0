"""Benches live servers over HTTP, one alone or two against each other."""
