"""Memory and time of training steps and of layers, from compiled programs."""
