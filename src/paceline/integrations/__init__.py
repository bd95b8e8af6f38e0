"""Our drafts inside other people's engines."""
