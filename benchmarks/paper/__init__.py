"""The paper's figures that need no ImageNet, and its ablation in miniature."""
