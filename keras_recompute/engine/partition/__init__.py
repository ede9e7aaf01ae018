"""What is saved and what is replayed: the forward and the backward program."""
