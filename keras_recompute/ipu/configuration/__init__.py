"""IPUConfig, the entered strategy, the devices they define, and the lists of refusals."""
