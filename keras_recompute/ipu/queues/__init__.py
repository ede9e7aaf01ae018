"""Queues between the host and a loop of the script's own."""
