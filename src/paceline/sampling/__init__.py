"""From logits to next-token distributions, and from distributions to tokens."""
