"""The arithmetic of all methods: pure functions on tensors of any library, no state, no layers."""
