"""The arithmetic of all methods as pure functions on tensors of any library: no state, no layers."""
