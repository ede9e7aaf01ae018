"""What a training script could save by checkpoints: ``keras-recompute doctor``."""
