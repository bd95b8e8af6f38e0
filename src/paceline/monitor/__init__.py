"""What a running server counts of its drafts."""
