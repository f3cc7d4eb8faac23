"""Comparison of the outputs of `make sim` with the labels, the golden model and onnxruntime."""

from collections.abc import Sequence

import numpy as np

from compiler.online_tuning.observers import ServingObserver
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import RequestResult
from scripts.networks.digits import MODEL


class AccuracyCheck(ServingObserver):
    """Observer that checks the output of every served image.

    Parameters
    ----------
    compiled : CompiledNetwork
        Network of the static compiler; its outputs on the golden model are the expected outputs.
    labels : array
        Labels of the images, 0..9.

    Attributes
    ----------
    images, right, exact : int
        Number of images served, classified correctly, and with bit-exact outputs.
    """

    def __init__(self, compiled: CompiledNetwork, labels: Sequence[int] | np.ndarray):
        self.compiled, self.labels = compiled, labels
        self.images = self.right = self.exact = 0
        self._outputs: list[tuple[np.ndarray, np.ndarray]] = []

    def result(self, result: RequestResult) -> None:
        """Check the output of an image."""
        (image,), (scores,) = result.inputs.values(), result.outputs.values()
        (expected,) = self.compiled(**result.inputs).values()
        self.images += 1
        self.right += int(scores.argmax() == self.labels[result.index])
        self.exact += np.array_equal(scores, expected)
        self._outputs.append((image, scores))

    @property
    def accuracy(self) -> float:
        """Fraction of the served images that were classified correctly."""
        return self.right / max(self.images, 1)

    def compare_with_onnxruntime(self) -> tuple[int, int] | None:
        """Return the number of images with the same class in onnxruntime, and the maximum difference between scores.

        Return None if onnxruntime is not installed. The results may differ, because onnxruntime computes layers in
        floating point, and the chip in integer arithmetic.
        """
        try:
            import onnxruntime
        except ImportError:
            return None
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(MODEL), options, ["CPUExecutionProvider"])
        (tensor,) = session.get_inputs()
        same = maximum = 0
        for image, scores in self._outputs:
            (reference,) = session.run(None, {tensor.name: image})
            reference = np.asarray(reference)
            same += int(reference.argmax() == scores.argmax())
            maximum = max(maximum, int(np.abs(reference.astype(int) - scores.astype(int)).max()))
        return same, maximum
