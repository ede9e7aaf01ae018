"""One module per framework. ``build(peer, workload, checkpoints)`` returns a ``Peer`` ready to take its first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Peer:
    """``step()`` trains once and returns (loss, norm of all gradients), when both are there.

    ``temporary_bytes()`` is what the compiler of the step allocates for temporaries; None where nothing is compiled.
    ``device_bytes()`` is what the allocator of a GPU holds now, and the most that it held; None without a GPU.
    """

    step: Callable[[], tuple[float, float]]
    temporary_bytes: Callable[[], int | None]
    device_bytes: Callable[[], tuple[int, int] | None]


@dataclass(frozen=True)
class Entry:
    """A way to train: the module that builds it, the packages it needs, what it is called in tables."""

    module: str
    packages: tuple[str, ...]
    title: str
    plain: bool = True  # takes part without checkpoints
    recomputes: bool = True  # takes part with checkpoints


PEERS = {
    "keras": Entry("keras_peers", ("tensorflow",), "keras", recomputes=False),
    "keras-jit": Entry("keras_peers", ("tensorflow",), "keras, jit", recomputes=False),
    "recompute-grad": Entry("keras_peers", ("tensorflow",), "keras + tf.recompute_grad", plain=False),
    "recompute-grad-jit": Entry("keras_peers", ("tensorflow",), "keras + tf.recompute_grad, jit", plain=False),
    "remat": Entry("keras_peers", ("tensorflow",), "keras + keras.remat", plain=False),
    "jax": Entry("jax_peer", ("jax",), "jax.checkpoint"),
    "torch": Entry("torch_peer", ("torch",), "torch.utils.checkpoint"),
    "ours": Entry("ours", ("tensorflow",), "keras_recompute"),
}
