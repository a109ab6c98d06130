"""The arithmetic that methods share: pure functions on tensors of any library, without state."""
