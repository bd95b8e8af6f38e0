"""OpenVINO models with paged attention."""
