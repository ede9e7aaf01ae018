"""The graph of a Keras model: read, compared, and cut into sections and loops."""
