"""Each ONNX operator is exact on every element type, within one step where it rounds, or rejected with a reason."""

from collections import Counter
from pathlib import Path

from scripts.onnx_nodes.suite import node_tests, share
from tests.frontends.onnx.type_sweep import UNDEFINED, outcome, variants

#: Largest difference from onnxruntime in steps of the output: a result that onnxruntime rounds from float32 may be at a
#: tie, and normalizations are within two steps of the real function (docs/numerics.md).
MAX_STEPS = {"LayerNormalization": 2, "RMSNormalization": 2}


def check_operators(tests: list, folder: Path) -> Counter[str]:
    """Check all variants of the tests and return the number of exact, rounded, rejected and omitted ones."""
    count: Counter[str] = Counter()
    for test in tests:
        if "_expanded" in test.name:
            continue
        for variant in variants(test):
            for constants in (False, True) if len(variant.inputs) > 1 else (False,):
                result = outcome(variant, constants, folder)
                name = f"{variant.name}{' const' if constants else ''}"
                if result.differences is None:
                    count["rejected" if result.message else "no reference"] += 1
                    continue
                worst = max(result.differences.values(), default=0.0)
                if worst and variant.operator in UNDEFINED:
                    count["undefined"] += 1
                    continue
                allowed = MAX_STEPS.get(variant.operator, 1) if " qdq " in name else 0
                assert worst <= allowed, f"{name}: differs by {worst}"
                count["rounded" if worst else "exact"] += 1
    return count


def test_operator_types(tmp_path: Path) -> None:
    count = check_operators(share(node_tests(), ()), tmp_path)
    assert count["exact"] > 500, count
