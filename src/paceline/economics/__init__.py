"""When a draft pays: costs, survival, break-even, the policy, and a simulator. Sees no model."""
