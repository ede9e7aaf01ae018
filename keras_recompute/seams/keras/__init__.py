"""Names of Keras that are not public: the ``graph`` of a functional model, ``layers``, how models are ``made``, and so on."""
