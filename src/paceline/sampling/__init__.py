"""From logits to next-token laws, and from laws to tokens."""
