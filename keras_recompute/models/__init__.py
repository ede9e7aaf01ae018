import keras  # noqa: F401 - before any module here, since it registers our classes (``keras_registration``)
