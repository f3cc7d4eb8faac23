"""Streams of the study of programs that follow the data, and its measurement of a changing stream."""

import numpy as np
import pytest

from hw.errors import InputError
from scripts import study_streams


def test_a_part_of_a_photograph_moves():
    images = list(study_streams.photographs(np.random.default_rng(1), (48, 32, 3), 20))
    assert len({each.tobytes() for each in images}) > 10
    still = np.median(np.stack(images), axis=0)
    for each in images:
        rows, columns = np.nonzero((each != still).any(-1))
        assert np.ptp(rows) < 9 and np.ptp(columns) < 6 and each.shape == (48, 32, 3)


def test_changing_stream_is_exact_and_settles():
    found = study_streams.changing(3, 210, 1)
    assert found["gain"] > 0.9 and found["loss"] < 0.1
    assert found["best"] < found["mean"] < found["static"]


def test_too_few_requests_are_an_error():
    with pytest.raises(InputError, match="--requests must be at least 600 for 5 changes, not 100"):
        study_streams.changing(0, 100, 5)
