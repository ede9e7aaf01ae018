"""Access to private names of Keras, one module per subject."""
