"""A ``sitecustomize`` module that installs Graphcore's names in child processes."""
