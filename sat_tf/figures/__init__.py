"""The paper's figures and tables that need no ImageNet, computed anew: numbers first, then drawn."""
