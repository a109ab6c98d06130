"""The paper's rows, its figures that need no ImageNet, and its ablation in miniature."""
