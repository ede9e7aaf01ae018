"""A function as a graph together with its gradient, and functions with a custom VJP."""
