"""Access to private names of TensorFlow, one module per subject."""
