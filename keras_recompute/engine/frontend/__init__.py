"""From a Python callable to its programs, with the checks that every caller needs."""
