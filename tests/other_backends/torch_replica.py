"""One process of DistributedDataParallel: trains a model with checkpoints on its share of a batch.

    python3 torch_replica.py RENDEZVOUS_FILE RANK COUNT

Prints as JSON the losses of its share at each step, and a sum of the weights in the end.
"""

import json
import sys

import keras
import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

import keras_recompute as kr

STEPS, BATCH, FEATURES = 4, 8, 6


def build():
    """Return a model with a checkpoint behind every second layer."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(FEATURES, "tanh") for _ in range(6)]
    return kr.checkpointed(keras.Sequential([keras.Input((FEATURES,)), *layers]), every=2)


def data():
    """Return the inputs and targets of all processes."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(BATCH, FEATURES)).astype("float32") for _ in range(2))


def train(model, x, y):
    """Return the losses of updates by gradient descent, in PyTorch's own loop."""
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = ((model(x, training=True) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(rendezvous, rank, count):
    """Join the other processes, train, and print what came of it."""
    init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=count)
    model = build()
    x, y = data()
    share = slice(rank * BATCH // count, (rank + 1) * BATCH // count)
    losses = train(DistributedDataParallel(model), x[share], y[share])
    weights = [float(np.abs(each).sum()) for each in model.get_weights()]
    print(json.dumps({"losses": losses, "weights": weights}))
    destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
