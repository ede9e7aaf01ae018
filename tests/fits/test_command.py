"""What the command says where it cannot answer."""

import keras  # noqa: F401  loaded on TensorFlow's backend, as in the other tests
import pytest

from keras_recompute.fits.command import main


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "the following arguments are required: MODEL, --device, --batch"),
        ("m.keras --device h100 --batch none", "'none' is not a whole number"),
        ("m.keras --device h100 --batch 2 --devices 2x0", "0 is too small: the least is 1"),
        ("m.keras --device local --batch 2 --timeout 9", "--timeout and --compile-memory limit"),
        ("m.keras --device h10 --batch 2", "did you mean 'h100'"),
    ],
)
def test_bad_input_is_one_line(line, said, capsys):
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
