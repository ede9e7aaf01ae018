"""Checkpointed functions on eight devices, beside the plain ones; a program of its own.

``test_jax_devices.py`` runs it, since the number of devices is fixed when JAX starts.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import keras_recompute as kr

MESH = jax.make_mesh((8,), ("d",), axis_types=(getattr(AxisType, sys.argv[1]),))
X, W = (
    jax.device_put(np.linspace(low, 1, rows * 4, dtype="float32").reshape(rows, 4), sharding)
    for low, rows, sharding in (
        (0.1, 16, NamedSharding(MESH, P("d"))),
        (-1, 4, NamedSharding(MESH, P())),
    )
)
ROWS = {"mesh": MESH, "in_specs": (P("d"), P()), "out_specs": P("d")}
SUMS = {**ROWS, "out_specs": P()}


def block(x, w):
    return jnp.tanh(jnp.sin(kr.checkpoint_name(x @ w, "hidden")) @ w) + x


def summed(x, w):
    return jax.lax.psum(block(x, w), "d")


def gradients(function):
    return jax.jit(jax.grad(lambda x, w: jnp.sum(function(x, w) ** 2), (0, 1)))(X, W)


CASES = {
    "inside of shard_map": lambda c: jax.shard_map(c(block), **ROWS),
    "around shard_map": lambda c: c(jax.shard_map(block, **ROWS)),
    "a sum over devices around": lambda c: jax.shard_map(
        lambda x, w: jax.lax.psum(c(block)(x, w), "d"), **SUMS
    ),
    "a sum over devices inside": lambda c: jax.shard_map(c(summed), **SUMS),
    "sharded arguments": lambda c: c(block),
    "in a scan": lambda c: jax.shard_map(
        lambda x, w: jax.lax.scan(lambda h, _: (c(block)(h, w), None), x, length=3)[0], **ROWS
    ),
}
POLICIES = (
    kr.policies.save_nothing,
    kr.policies.save_matmuls,
    kr.policies.save_and_offload_names(offload=("hidden",)),
)


def main():
    assert len(jax.devices()) == 8
    for name, case in CASES.items():
        wanted = gradients(case(lambda f: f))
        for policy in POLICIES:
            found = gradients(case(lambda f, policy=policy: kr.checkpoint(f, policy=policy)))
            for ours, plain in zip(found, wanted):
                assert ours.sharding.is_equivalent_to(plain.sharding, 2), (name, policy)
                np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5, err_msg=name)
    print("equal:", len(CASES) * len(POLICIES))


if __name__ == "__main__":
    main()
