"""The paper's arithmetic as pure functions on tensors; no state, no Keras, no TFMOT."""
