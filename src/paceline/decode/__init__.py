"""The one loop: propose, score, verify, commit, rewind; `round` has its rules."""
