import os

from sdk_calls import record

# Name: default. Of the options those with a plain type; any other name is refused, as by the SDK.
_DEFAULTS = {
    "auto_select_ipus": [],
    "select_ipus": [],
    "allow_recompute": False,
    "compilation_poplar_options": {},
}
in_force = []


class IPUConfig:
    def __init__(self):
        record("IPUConfig")
        self.__dict__.update(_DEFAULTS)

    def __setattr__(self, name, value):
        if name not in _DEFAULTS:
            raise ValueError(f"{name!r} is not an option")
        takes = (int, list, tuple) if name.endswith("select_ipus") else (type(_DEFAULTS[name]),)
        if type(value) not in takes:
            raise TypeError(f"{name} takes {takes}, not {value!r}")
        record("IPUConfig." + name, value=value)
        self.__dict__[name] = value

    def configure_ipu_system(self, device="cpu"):
        record("configure_ipu_system", device=device, flags=os.environ.get("TF_POPLAR_FLAGS"))
        if self.auto_select_ipus and self.select_ipus:
            raise Exception("both selections are set")
        in_force[:] = [self]
