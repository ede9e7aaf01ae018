"""Private names of JAX."""
