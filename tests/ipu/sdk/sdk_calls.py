"""The calls that the double of the Poplar SDK received, in order.

They are lines of JSON in the file SDK_DOUBLE_CALLS.
"""

import json
import os


def record(call, **arguments):
    with open(os.environ["SDK_DOUBLE_CALLS"], "a") as file:
        file.write(json.dumps([call, arguments]) + "\n")


def wrong(what):
    """Make the script fail: it did what the SDK does not take."""
    raise AssertionError(f"the SDK does not take this: {what}")
