"""Warnings stand at the user's line, whatever of Python's own lies between."""

import contextlib
import inspect
import warnings

import numpy as np

from keras_recompute.user_code import is_of_user, warn_user


def test_what_is_of_the_user():
    assert is_of_user(__file__)
    assert is_of_user(np.__file__)
    assert not is_of_user(contextlib.__file__)
    assert not is_of_user(inspect.getsourcefile(warn_user))


def test_a_warning_behind_a_context_of_python():
    stack = contextlib.ExitStack()
    stack.callback(warn_user, "behind")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack.close()
    (warning,) = caught
    assert warning.filename == __file__
