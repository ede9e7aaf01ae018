from .. import pipelining_ops  # noqa: F401
