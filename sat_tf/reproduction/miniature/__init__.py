"""The paper in miniature: its ablation on a thousand printed characters, claim by claim."""
