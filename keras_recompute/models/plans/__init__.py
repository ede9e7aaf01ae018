"""Where checkpoints go: at chosen layers, at every n-th one, or by a budget."""
