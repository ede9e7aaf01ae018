"""All errors and warnings that this project raises on purpose.

A message says what is wrong, with which value, why, and what to do. Each class also derives from
the built-in exception that fits, so that ``except ValueError`` keeps working.
"""

from __future__ import annotations


class RecomputeError(Exception):
    """Base class of all errors that this project raises on purpose.

    Examples:
        >>> try:
        ...     kr.checkpointed(keras.Sequential(), every=0)
        ... except kr.errors.RecomputeError as error:
        ...     print(type(error).__name__)
        InvalidArgumentError
    """

    # AutoGraph re-raises an error of a converted function by its class, if that is constructed from
    # one message. It looks for that at this attribute.
    __init__ = Exception.__init__


class InvalidArgumentError(RecomputeError, ValueError):
    """An argument has a value that cannot work.

    Examples:
        >>> kr.TimeSlice(4, 2)
        Traceback (most recent call last):
            ...
        keras_recompute.errors.InvalidArgumentError: TimeSlice needs whole numbers with 0 <= ...
    """


class UnsupportedError(RecomputeError, NotImplementedError):
    """A request that is understood but that this project does not carry out.

    Examples:
        >>> kr.LSTM(4, unroll=True)
        Traceback (most recent call last):
            ...
        keras_recompute.errors.UnsupportedError: LSTM 'lstm...': unroll=True is not supported, ...
    """


class XlaUnsupportedError(UnsupportedError):
    """XLA has no way to compile an operation of a program; TensorFlow runs it without jit.

    Attributes:
        operation: The kind of the operation.
        layer: The path of the layer that it belongs to; None where that is not known.

    Examples:
        >>> try:
        ...     kr.liveness.profile(tf.strings.as_string, tf.TensorSpec((2,)))
        ... except kr.errors.XlaUnsupportedError as error:
        ...     print(error.operation)
        AsString
    """

    def __init__(self, message: str, *, operation: str, layer: str | None = None) -> None:
        super().__init__(message)
        self.operation, self.layer = operation, layer


class InvalidPlanError(RecomputeError, ValueError):
    """Raised up to version 0.2 by a simulator of plans; kept for programs that catch it."""


class InvalidProgramError(RecomputeError, RuntimeError):
    """A program of the engine failed the engine's own check: a defect of this package."""


class ReplayError(RecomputeError, RuntimeError):
    """What is computed again cannot be what the forward pass computed.

    Something that it follows from was changed in place, or an operation gives other values when it
    runs again.

    Examples:
        >>> raise kr.errors.ReplayError("a float32[4,4] was changed in place")
        Traceback (most recent call last):
            ...
        keras_recompute.errors.ReplayError: a float32[4,4] was changed in place
    """


class ReportError(RecomputeError, ValueError):
    """A report or a compiled program could not be read or written.

    Examples:
        >>> kr.liveness.Program.read("nowhere.json")
        Traceback (most recent call last):
            ...
        keras_recompute.errors.ReportError: no liveness report could be read from 'nowhere...
    """


class TargetError(RecomputeError, RuntimeError):
    """The requested target (an IPU, the IPU model) is not available on this machine."""


class DeviceError(RecomputeError, RuntimeError):
    """The compiler of a device that is not here is missing, took too long, or refused the program.

    Examples:
        >>> raise kr.errors.DeviceError("compiling for TPU v5e took longer than 600 s")
        Traceback (most recent call last):
            ...
        keras_recompute.errors.DeviceError: compiling for TPU v5e took longer than 600 s
    """


class DoesNotFitError(DeviceError):
    """The compiler of a device says that a program needs more memory than the device has.

    Attributes:
        needed_bytes: How much it needs there.

    Examples:
        >>> try:
        ...     raise kr.errors.DoesNotFitError(
        ...         "the program needs 20 GiB of 16 GiB", needed_bytes=20 * 2**30
        ...     )
        ... except kr.errors.DeviceError as error:
        ...     print(error, error.needed_bytes)
        the program needs 20 GiB of 16 GiB 21474836480
    """

    def __init__(self, message: str, *, needed_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class ClusterError(RecomputeError, RuntimeError):
    """The workers of a cluster did not meet, were started differently, or lost one of them.

    Examples:
        >>> raise kr.errors.ClusterError("worker 1 of 2 (host1:40027) did not connect")
        Traceback (most recent call last):
            ...
        keras_recompute.errors.ClusterError: worker 1 of 2 (host1:40027) did not connect
    """


class RecomputeWarning(UserWarning):
    """Recomputation works, but not as well as it could, or not at all where it was asked for.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     with kr.recompute_scope():
        ...         pass
        >>> caught[0].category.__name__
        'RecomputeWarning'
    """
