"""First calls that come together: eight threads call a function that nobody called before."""

from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.passes import tracebacks

THREADS = 8


def together(work):
    """Return what ``work(n)`` returns in each of the threads, which begin at once."""
    barrier, results = threading.Barrier(THREADS), [None] * THREADS

    def run(n):
        barrier.wait()
        try:
            results[n] = work(n)
        except BaseException as error:
            results[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [each for each in results if isinstance(each, BaseException)]
    if failed:
        raise failed[0]
    return results


def test_one_of_them_makes_the_program():
    runs = []

    def slow(x):
        runs.append(threading.get_ident())
        time.sleep(0.05)  # long enough for all others to come
        return tf.sin(tf.sin(x))

    function = kr.checkpoint(slow)

    def gradient(_):
        x = tf.constant([0.5, 1.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x).numpy()

    with pytest.warns(kr.errors.RecomputeWarning, match="changes the list 'runs'"):
        found = together(gradient)
    assert len(runs) == 1
    x = tf.constant([0.5, 1.0])
    for each in found:
        assert each == pytest.approx((tf.cos(tf.sin(x)) * tf.cos(x)).numpy(), rel=1e-6)


def test_second_derivatives():
    function = kr.checkpoint(lambda x: tf.exp(tf.sin(x)) * x)

    def second(n):
        x = tf.constant(0.1 + n)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = function(x)
            slope = inner.gradient(y, x)
        return outer.gradient(slope, x).numpy()

    for n, found in enumerate(together(second)):
        x = 0.1 + n
        e, s, c = tf.exp(tf.sin(x)), tf.sin(x), tf.cos(x)
        assert found == pytest.approx(float(e * (2 * c + x * (c * c - s))), rel=1e-4)


def test_lines_have_one_traceback(monkeypatch):
    """Its code is kept with it: of another one, made at the same time, it would be lost, and a look
    at it would crash.
    """
    make, made = tracebacks._make_traceback, []

    def slow(lines):
        made.append(lines)
        time.sleep(0.05)
        return make(lines)

    monkeypatch.setattr(tracebacks, "_make_traceback", slow)
    lines = (("of_no_other_test.py", 7, "function"),)
    found = together(lambda _: tracebacks._traceback_of(lines))
    assert made == [lines]
    assert len(set(map(id, found))) == 1
    assert [(f.filename, f.lineno, f.name) for f in found[0]] == list(lines)
