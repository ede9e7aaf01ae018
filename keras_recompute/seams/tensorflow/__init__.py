"""Names of TensorFlow that are not public: ``functions``, ``operations``, ``gradients``, ``traced`` functions, and so on."""
