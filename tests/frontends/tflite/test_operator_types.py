"""Every kind of TFLite operator equals LiteRT on every type, is within its published bound, or is rejected."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from compiler.frontends.tflite.reader import KNOWN
from compiler.frontends.tflite.registry import CONVERTERS
from tests.frontends.tflite.type_sweep import RECURRENT, Trial, outcome, trials
from tests.support.tflite_kinds import KINDS

#: Largest differences from LiteRT in steps (docs/numerics.md): tables depend on the C library's last bits, and some
#: results are rounded from floating point.
MOST_OFF = {
    **dict.fromkeys(("EXP", "GELU", "LOG", "LOGISTIC", "TANH", "SOFTMAX", "L2_NORMALIZATION", "DIV"), 1),
    "LOG_SOFTMAX": 7,
}
#: Larger differences of the default kernels.
_DEFAULT_KERNELS = {
    ("LOGISTIC", "int16"): 7,
    ("TANH", "int16"): 12,
    **{(kind, dtype): 1 for kind in ("QUANTIZE", "TRANSPOSE_CONV") for dtype in ("int8", "uint8")},
}
#: Kernels of LiteRT that read bytes of slopes, or signed values as unsigned.
WRONG_IN_LITERT = {
    ("PRELU", "int16", "reference"),
    ("PRELU", "int16", "xnnpack"),
    ("SUM", "int8", "reference"),
    ("SUM", "int16", "reference"),
}


def most_off(trial: Trial) -> int:
    """Return the published bound of a trial's differences from LiteRT, in steps."""
    most = MOST_OFF.get(trial.kind, 0)
    if trial.rounding == "xnnpack":
        most = max(most, _DEFAULT_KERNELS.get((trial.kind, trial.dtype), 0))
    return most if trial.dtype not in ("int32", "float32") else 0


def check_kinds(kinds: Sequence[str], seeds: Sequence[int], folder: Path, share: int = 1) -> Counter[str]:
    """Check random models of each kind, and return the number of trials with each result.

    Parameters
    ----------
    share : int
        One of this number of trials is checked.
    """
    count: Counter[str] = Counter()
    for number, kind in enumerate(kinds):
        for trial in islice(trials(kind, seeds), number % share, None, share):
            result = outcome(trial, folder)
            if result.differences is None:
                count["rejected" if result.message else "no kernel"] += 1
                continue
            worst = max(result.differences.values(), default=0.0)
            if worst and (trial.kind, trial.dtype, trial.rounding) in WRONG_IN_LITERT:
                count["wrong in LiteRT"] += 1
                continue
            assert worst <= most_off(trial), f"{trial.name}: differs by {worst}"
            count["rounded" if worst else "exact"] += 1
    return count


def test_every_kind_is_swept() -> None:
    assert KINDS.keys() | RECURRENT.keys() == CONVERTERS.keys() | KNOWN


def test_operator_types(tmp_path: Path) -> None:
    count = check_kinds([*KINDS, *RECURRENT], range(1), tmp_path, share=2)
    print(count)
    assert count["exact"] > 350, count
