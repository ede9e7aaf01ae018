"""Operations in a form that one compiler runs faster or with less memory.

They work around XLA:CPU and TensorFlow on CPUs, and have nothing to do with recomputation.
"""
