"""The audit: a network measured by the rules of efficient training."""
