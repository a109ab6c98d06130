"""The paper's figures and tables that need no ImageNet, recomputed and drawn."""
