"""The hook that checks commit messages, which pre-commit installs."""

import pytest

from docs.commit_subject import main, problems

GOOD = [
    "Add a pass for depthwise convolutions",
    "Seed the generators of workers\n\nBy their numbers: 3 of 4 had drawn alike.",
    "Bring back the first figure",
    "Merge branch 'a' into a branch whose name is so long that nobody would ever type it all",
    "x" * 72,
    "Fix the scan\n\n# a line that git strips\nReason.",
]
BAD = {
    "Add " + "x" * 69: "has 73 characters, and the most is 72",
    "Fix the scan.": "ends in a full stop",
    "The scan is fixed": "begins with 'The'",
    "Fixed the scan": "begins with 'Fixed'",
    "Fixing the scan": "begins with 'Fixing'",
    "Fix the scan\nReason": "the second line is not empty",
    "": "the subject is empty",
}


@pytest.mark.parametrize("message", GOOD)
def test_good_subjects_pass(message):
    assert problems(message) == []


@pytest.mark.parametrize("message", BAD)
def test_bad_subjects_are_refused(message, tmp_path, capsys):
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(f"{message}\n")
    assert main([str(file)]) == 1
    assert BAD[message] in capsys.readouterr().err
