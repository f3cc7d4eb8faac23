"""Handwritten digits from scikit-learn, with a fixed split into training and held-out images."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

HELD_OUT = 360
MODEL = Path(__file__).parent / "digits_int8.onnx"


class Digits(NamedTuple):
    """Subset of the data set: int8 images of shape N x 1 x 8 x 8 with values 0..16, and labels 0..9."""

    images: np.ndarray
    labels: np.ndarray


def load_digits_split() -> tuple[Digits, Digits]:
    """Return the training images and 360 held-out images; the split is fixed and stratified."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
    images = images.reshape(-1, 1, 8, 8).astype(np.int8)
    split = train_test_split(images, labels, test_size=HELD_OUT, stratify=labels, random_state=0)
    parts = [np.asarray(part) for part in split]
    return Digits(parts[0], parts[2]), Digits(parts[1], parts[3])
