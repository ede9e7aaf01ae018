"""The modules from which scripts import Graphcore's API."""
