"""Pictures in folders: listed, sampled and decoded."""
