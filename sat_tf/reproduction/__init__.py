"""The paper's experiments: its rows, its figures, and its ablation in miniature."""
