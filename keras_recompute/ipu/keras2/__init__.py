"""Ways of Keras 2 that Keras 3 has given up, for scripts that were written for it."""
