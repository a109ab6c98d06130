"""Which layers get how many bits: the least estimated loss within a budget, proven."""
