"""The inspection of a function: what it keeps, what it repeats, and its two programs.

``records`` need no backend; the functions are TensorFlow's.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
