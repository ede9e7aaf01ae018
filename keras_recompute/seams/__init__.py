"""Access to private and replaced names of TensorFlow, Keras and PyTorch, all in this one room.

What a release may take away or change stands here, behind a function each, so that a new TensorFlow
or Keras is tried in seconds (``pytest tests/seams``) and mended in one place. A name whose
docstring says nothing else is in every release that the project allows: TensorFlow 2.18 to 2.21,
Keras 3.12 to 3.15, PyTorch 2.13.
"""
