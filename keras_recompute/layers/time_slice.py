"""The layer that selects some timesteps of a sequence.

Runs under Keras 2.6, beside the Poplar SDK, and under Keras 3.
"""

from typing import Any, Dict

from ..errors import InvalidArgumentError
from ..keras_backend import keras_of_layers

keras: Any = keras_of_layers()


@keras.utils.register_keras_serializable(package="keras_recompute")
class TimeSlice(keras.layers.Layer):
    """Return ``inputs[:, start:stop]``, ``(batch, stop - start, ...)``, of ``(batch, time, ...)``.

    Unlike a Lambda, it lets sections that differ only in the slice be recognised as equal.

    Raises:
        InvalidArgumentError: Not ``0 <= start < stop``; when called, a sequence is shorter than
            ``stop``.

    Examples:
        >>> kr.TimeSlice(1, 3)(tf.constant([[10, 20, 30, 40]])).numpy()
        array([[20, 30]], dtype=int32)
    """

    def __init__(self, start: int, stop: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start < stop):
            raise InvalidArgumentError(
                f"TimeSlice needs whole numbers with 0 <= start < stop, not start={start!r}, "
                f"stop={stop!r}"
            )
        self.start, self.stop = start, stop

    def call(self, inputs: Any) -> Any:
        """Return the slice. Raises InvalidArgumentError for a sequence shorter than ``stop``."""
        self._require_steps(inputs.shape[1])
        return inputs[:, self.start : self.stop]

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the type and shape of the slice, also of a sequence of unknown length."""
        self._require_steps(inputs.shape[1])
        shape = (inputs.shape[0], self.stop - self.start, *inputs.shape[2:])
        return keras.KerasTensor(shape, inputs.dtype)

    def _require_steps(self, length: Any) -> None:
        if length is not None and length < self.stop:
            raise InvalidArgumentError(
                f"{self.name!r} takes the steps {self.start} to {self.stop}, but the sequence has "
                f"only {length}: lower stop or give longer sequences"
            )

    def get_config(self) -> Dict[str, Any]:
        """Return Keras's config with ``start`` and ``stop``."""
        return {**super().get_config(), "start": self.start, "stop": self.stop}
