"""Passes: what makes the saving of a program real under one compiler or another."""
