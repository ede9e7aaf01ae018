"""The classes of models that recompute, and how they are made, copied and saved."""
