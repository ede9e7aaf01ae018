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
        ("m.keras --device h100 --batch 2", "and it runs on tensorflow already"),
    ],
)
def test_bad_input_is_one_line(line, said, capsys):
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
