"""The one loop: propose, score, verify, commit, rewind."""
