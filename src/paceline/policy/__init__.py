"""Which draft to ask and how far, from measured costs and counted acceptance. Sees no model."""
