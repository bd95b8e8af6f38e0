"""Where proposals come from."""
