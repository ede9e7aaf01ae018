"""The parts of the example beside the library: its command line, its data, and one run."""
