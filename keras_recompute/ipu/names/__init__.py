"""The names under which scripts import Graphcore's API."""
