"""Drafts whose model has another tokenizer than the target."""
