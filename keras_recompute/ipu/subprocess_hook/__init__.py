"""What gives Graphcore's names to the Python processes that a script starts."""
