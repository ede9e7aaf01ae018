"""What the example needs besides the library: its command line, its data, and the course of one run."""
