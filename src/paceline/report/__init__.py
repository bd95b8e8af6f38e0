"""Pictures and pages of what was measured. Sees no engine and no model."""
