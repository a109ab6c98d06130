"""The paper's figures and tables that need no ImageNet: computed anew, and drawn."""
