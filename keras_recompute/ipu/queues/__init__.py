"""Queues between the host and a script's own loop."""
