"""Draft checkpoints as they lie on disk: what they are, which engines load them, what is wrong."""
