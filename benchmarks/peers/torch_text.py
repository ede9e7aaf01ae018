"""The example's language model in PyTorch: ``python torch_text.py TEXT MINUTES [checkpoints]``.

The same network, optimiser, windows of text and validation windows, and weights drawn as the
example draws them. Printed is a line of JSON after every validation: updates, seconds of training,
bits per byte of what was learnt last and of what was held back.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

SYMBOLS, STEPS, UNITS, FEATURES, BATCH, RATE, HELD_BACK, EVERY, VALIDATED = (
    256,
    2048,
    256,
    512,
    16,
    0.003,
    0.1,
    40,
    8,
)


class Network(nn.Module):
    """Bytes to the logits of the bytes that follow, in equal sections of which only the states
    between are kept.
    """

    def __init__(self, checkpoints: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, FEATURES)
        self.layer = nn.LSTM(FEATURES, UNITS, batch_first=True)
        self.last = nn.Linear(UNITS, SYMBOLS)
        self.section = STEPS // (checkpoints + 1)
        self._begin_as_the_example_does()

    @torch.no_grad()
    def _begin_as_the_example_does(self) -> None:
        nn.init.normal_(self.embedding.weight)
        for matrix in (self.layer.weight_ih_l0, self.last.weight):
            nn.init.xavier_uniform_(matrix)
        nn.init.orthogonal_(self.layer.weight_hh_l0)
        for bias in (self.layer.bias_ih_l0, self.layer.bias_hh_l0, self.last.bias):
            nn.init.zeros_(bias)
        self.layer.bias_ih_l0[UNITS : 2 * UNITS] = 1.0  # of the forget gate

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, steps, symbols)``."""
        state, outputs = None, []
        for part in symbols.split(self.section, dim=1):
            if self.training and self.section < STEPS:
                y, state = checkpoint(
                    self._run, part, state, use_reentrant=False, preserve_rng_state=False
                )
            else:
                y, state = self._run(part, state)
            outputs.append(y)
        return self.last(torch.cat(outputs, dim=1))

    def _run(self, part: torch.Tensor, state: object) -> object:
        return self.layer(self.embedding(part), state)


def windows(text: np.ndarray, part: range, seed: int):
    """Yield microbatches of inputs and targets, drawn as the example draws them."""
    random = np.random.RandomState(seed)
    while True:
        begins = random.randint(part.start, part.stop - STEPS, size=BATCH)
        drawn = torch.from_numpy(
            np.stack([text[begin : begin + STEPS + 1] for begin in begins]).astype(np.int64)
        )
        yield drawn[:, :-1], drawn[:, 1:]


def main(path: str, minutes: float, checkpoints: int = 0) -> None:
    """Train for ``minutes``, without the time that validation takes."""
    torch.manual_seed(0)
    text = np.frombuffer(Path(path).read_bytes(), np.uint8)
    learnt = len(text) - int(len(text) * HELD_BACK)
    network = Network(checkpoints)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, eps=1e-7)  # Keras's
    validation = windows(text, range(learnt, len(text)), seed=1)
    held_back = [next(validation) for _ in range(VALIDATED)]
    seconds, updates = 0.0, 0

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(network(x).reshape(-1, SYMBOLS), y.reshape(-1))

    for x, y in windows(text, range(learnt), seed=0):
        begin = time.perf_counter()
        network.train()
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        seconds, updates = seconds + time.perf_counter() - begin, updates + 1
        is_over = seconds >= 60 * minutes
        if updates % EVERY == 0 or is_over:
            network.eval()
            with torch.no_grad():
                found = sum(loss_of(*pair).item() for pair in held_back) / VALIDATED
            row = {
                "updates": updates,
                "seconds": seconds,
                "learnt": loss.item() / math.log(2),
                "held_back": found / math.log(2),
            }
            print(json.dumps(row), flush=True)
        if is_over:
            return


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
