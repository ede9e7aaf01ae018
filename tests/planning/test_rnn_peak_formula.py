"""The predicted peak of a recurrent network, against the sums done by hand; against compiled
programs: test_recompute_lstm.
"""

import pytest

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import predicted_peak_bytes
from keras_recompute.planning.nested_sections import equal_groups


def predicted(**changes):
    sizes = {
        "cell": "lstm",
        "steps": 64,
        "checkpoints": 15,
        "recompute": True,
        "batch": 2,
        "features": 8,
        "units": 16,
        "outputs": 1,
    }
    return predicted_peak_bytes(**{**sizes, **changes})


# LSTM: kernel 8 x 64, recurrent kernel 16 x 64, bias 64, dense 16 + 1. GRU: 8 x 48, 16 x 48, two
# biases of 48, dense.
LSTM, GRU = 512 + 1024 + 64 + 17, 384 + 768 + 96 + 17


def test_one_level_of_an_lstm_by_hand():
    # Weights and their sums; behind each of 16 sections a border of two states; kernels joined; 128
    # rows of outputs and of the loss, twice; a section of 4 steps: 8 rows, each with a gradient of
    # the logits and 5 x 16, and the gradient of the recurrent kernel.
    elements = 2 * LSTM + LSTM + 16 * 2 * 32 + 1536 + 128 * 16 + 2 * 128 + 8 + (8 * 80 + 1024)
    assert predicted() == 4 * elements


def test_two_levels_of_an_lstm_by_hand():
    # 16 sections are 4 groups of 4: 4 + 4 borders, the outputs of 32 rows, the inputs of 32 rows
    # and their gradient.
    elements = (
        2 * LSTM
        + 2 * LSTM
        + (4 + 4) * 2 * 32
        + 1536
        + 32 * 16
        + 32 * (8 + 1)
        + 2 * 128
        + 8
        + (8 * 80 + 1024)
    )
    assert predicted(levels=2) == 4 * elements


def test_two_levels_of_a_gru_by_hand():
    # As of the LSTM, with one state; the kernels of two gates joined, 24 x 32.
    elements = (
        2 * GRU
        + 2 * GRU
        + (4 + 4) * 32
        + 24 * 32
        + 32 * 16
        + 32 * (8 + 1)
        + 2 * 128
        + 8
        + (8 * 5 * 16 + 2 * 768)
    )
    assert predicted(cell="gru", levels=2) == 4 * elements


def test_sections_of_two_lengths_by_hand():
    # 11 sections in 64 steps: 9 of 6, 2 of 5. Borders 9 + 2; one loop's gradients wait for the
    # other; 12 rows.
    elements = (
        2 * LSTM
        + LSTM
        + LSTM
        + (9 + 2) * 2 * 32
        + 1536
        + 128 * 16
        + 2 * 128
        + 12
        + (12 * 80 + 1024)
    )
    assert predicted(checkpoints=10) == 4 * elements


def test_nothing_recomputed_by_hand():
    # Per row 8 inputs, 4 x 16 gates, cell states, outputs and their gradient; of one section of 4
    # steps 5 x 16 more.
    assert predicted(recompute=False) == 4 * (2 * LSTM + 128 * (8 + 7 * 16) + 8 * 5 * 16)
    assert predicted(recompute=False, checkpoints=0) == 4 * (2 * LSTM + 128 * (8 + 8 * 16))
    assert predicted(recompute=False, checkpoints=0, cell="gru") == 4 * (
        2 * GRU + 128 * (8 + 7 * 16)
    )


def test_one_section_by_hand():
    # Inputs twice, outputs twice, the product of four gates and what it is written with; the
    # kernels joined, 24 x 64.
    assert predicted(checkpoints=0) == 4 * (2 * LSTM + 128 * (2 * 8 + 7 * 16) + 24 * 64)
    # Inputs, the product of two gates, two of the candidate, what they are written with, and
    # outputs, twice.
    assert predicted(checkpoints=0, cell="gru") == 4 * (2 * GRU + 128 * (8 + 9 * 16))


def test_a_wide_loss_is_the_peak():
    # 256 symbols embedded: 3 x 256 per row, and Adam's two moments.
    weights = 256 * 8 + 512 + 1024 + 64 + 17 * 256
    elements = 4 * weights + 16 * 2 * 32 + 1536 + 128 * 16 + 3 * 128 * 256
    assert predicted(outputs=256, embedded_symbols=256, optimizer_slots=2) == 4 * elements


def test_more_levels_take_less_where_states_and_outputs_are_large():
    peaks = [predicted(steps=4096, batch=16, checkpoints=255, levels=levels) for levels in (1, 2)]
    assert peaks[1] < 0.5 * peaks[0]


def test_an_unknown_cell_is_refused():
    with pytest.raises(InvalidArgumentError, match="cell is 'rnn': give lstm or gru"):
        predicted(cell="rnn")


@pytest.mark.parametrize(
    ("count", "levels", "expected"),
    [
        (8, 1, (8,)),
        (8, 2, (4, 2)),
        (32, 2, (8, 4)),
        (64, 3, (4, 4, 4)),
        (12, 3, (3, 2, 2)),
        (7, 2, (7,)),
        (1, 2, (1,)),
    ],
)
def test_sections_are_grouped_evenly(count, levels, expected):
    assert equal_groups(count, levels) == expected


@pytest.mark.parametrize(
    ("count", "levels", "wrong"), [(0, 1, "count is 0"), (4, 0, "levels is 0")]
)
def test_groups_are_counted(count, levels, wrong):
    with pytest.raises(InvalidArgumentError, match=wrong):
        equal_groups(count, levels)
