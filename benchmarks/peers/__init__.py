"""One module per framework.

``build(peer, workload, checkpoints)`` returns a ``Peer`` ready to take its first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from workloads import CONVOLVE

ON_DEVICE = "device allocator"  # how memory was measured, on a GPU


@dataclass(frozen=True)
class Peer:
    """``step()`` trains once and returns (loss, norm of all gradients), when both are there.

    ``temporary_bytes()`` is what the compiler of the step allocates for temporaries; None where
    nothing is compiled. ``device`` reads the allocator of a GPU; None where the step runs on a CPU.
    ``plan`` says what a planner chose.
    """

    step: Callable[[], tuple[float, float]]
    temporary_bytes: Callable[[], int | None]
    device: DeviceMemory | None = None
    plan: str | None = None


@dataclass(frozen=True)
class DeviceMemory:
    """The allocator of a GPU: bytes held now, the most that were held, and how to begin that anew
    (JAX has no way).
    """

    held_bytes: Callable[[], int]
    peak_bytes: Callable[[], int]
    forget_peak: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Entry:
    """A way to train: the module that builds it, the packages it needs, what it is called in
    tables.

    ``main`` peers run in every round and are in the project's table and the plots; others run once.
    ``kinds`` are the kinds of workload that it takes part in, if not all. ``backend`` is Keras's.
    """

    module: str
    packages: tuple[str, ...]
    title: str
    plain: bool = True  # takes part without checkpoints
    recomputes: bool = True  # takes part with checkpoints
    main: bool = True
    kinds: tuple[str, ...] = ()
    backend: str = "tensorflow"  # of Keras


PEERS = {
    "keras": Entry("keras_peers", ("tensorflow",), "keras", recomputes=False),
    "keras-jit": Entry("keras_peers", ("tensorflow",), "keras, jit", recomputes=False, main=False),
    "recompute-grad": Entry(
        "keras_peers", ("tensorflow",), "keras + tf.recompute_grad", plain=False
    ),
    "recompute-grad-jit": Entry(
        "keras_peers", ("tensorflow",), "keras + tf.recompute_grad, jit", plain=False, main=False
    ),
    "remat": Entry("keras_peers", ("tensorflow",), "keras + keras.remat", plain=False, main=False),
    "jax": Entry("jax_peer", ("jax",), "jax.checkpoint"),
    "jax-in-loop": Entry(
        "jax_peer",
        ("jax",),
        "jax.checkpoint, inputs projected in the loop",
        main=False,
        kinds=("lstm", "gru"),
    ),
    "torch": Entry("torch_peer", ("torch",), "torch.utils.checkpoint"),
    "ours": Entry("ours", ("tensorflow",), "keras_recompute"),
    "ours-without-jit": Entry(
        "ours", ("tensorflow",), "keras_recompute, without jit", kinds=CONVOLVE
    ),
    "ours-on-jax": Entry(
        "ours_on_jax", ("jax",), "keras_recompute on JAX", main=False, backend="jax"
    ),
    "ours-planned": Entry(
        "planned", ("tensorflow",), "keras_recompute, planned", plain=False, main=False
    ),
}


def takes_part(name: str, checkpoints: int, *, kind: str) -> bool:
    """Return whether there is anything to measure: recomputation needs checkpoints; some peers are
    for some kinds of model.
    """
    entry = PEERS[name]
    return (entry.recomputes if checkpoints else entry.plain) and (
        not entry.kinds or kind in entry.kinds
    )


def title(name: str, checkpoints: int) -> str:
    """Return what the peer is called in a row: without checkpoints, the framework alone."""
    if checkpoints:
        return PEERS[name].title
    return {"jax": "jax", "jax-in-loop": "jax, inputs projected in the loop", "torch": "torch"}.get(
        name, PEERS[name].title
    )
