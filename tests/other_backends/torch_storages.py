"""What PyTorch's programs hold and repeat: storages that are alive, and operations that run."""

import gc
import weakref
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts operations by name, and the bytes of storages that they made and that are alive."""

    def __init__(self):
        super().__init__()
        self.counts, self.live_bytes, self.peak_bytes = Counter(), 0, 0
        self._known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        given = {id(t.untyped_storage()) for t in tensors_in([*args, *(kwargs or {}).values()])}
        results = function(*args, **(kwargs or {}))
        for tensor in tensors_in([results]):
            storage = tensor.untyped_storage()
            if id(storage) not in given | self._known:
                self._known.add(id(storage))
                self.live_bytes += storage.nbytes()
                weakref.finalize(storage, self._freed, id(storage), storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return results

    def _freed(self, storage, size):
        self._known.discard(storage)
        self.live_bytes -= size


def tensors_in(values):
    """Return the tensors in ``values`` and in lists among them."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def tensors_alive():
    """Return how many tensors the garbage collector knows."""
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
