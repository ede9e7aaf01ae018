"""Whether a model of full size trains on a device that is not here: ``keras-recompute fits``."""
