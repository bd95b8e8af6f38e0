"""A decision from anything measured, as a document that the exports read."""
