"""Operations in a form that one compiler runs faster or with less memory.

They work around XLA:CPU and TensorFlow on CPUs, and have nothing to do with recomputation. Each may
go once a test in ``tests/engine/kernels`` says that its reason has gone: one that leaves the kernel
out and finds the slow form, or the large arrays, that it is there for. Of ``conv_grad_matmul`` only
time can say it: ``benchmarks/operations.py``.
"""
