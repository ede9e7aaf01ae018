"""Private names of PyTorch that the scopes and records of its backend need."""
