"""Templates of edited programs apply to the same layers with other weights, and are proved equivalent there."""

import random
from dataclasses import replace

import pytest

from compiler.schedule.program_override import TemplateCommand, read_template, template_values
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.edit import EditError
from compiler.tuning.edits.editable_programs import templates_of, with_templates
from compiler.tuning.measure.equivalence import EquivalenceChecker
from tests.support.learned import edited, prepared

NETWORKS = {
    "conv": CalibrationNetwork((9, 9, 12), (CalibrationOp("conv", 20, 3),)),
    "depthwise": CalibrationNetwork((9, 9, 20), (CalibrationOp("depthwise", 0, 3),)),
    "dense": CalibrationNetwork((5, 1, 40), (CalibrationOp("dense", 24),)),
    "max_pool": CalibrationNetwork((8, 8, 12), (CalibrationOp("max_pool", 0, 2, 2),)),
    "softmax": CalibrationNetwork((5, 6, 12), (CalibrationOp("softmax"),)),
    "norm": CalibrationNetwork((5, 5, 12), (CalibrationOp("norm"),)),
    "chain": CalibrationNetwork(
        (9, 9, 8), (CalibrationOp("conv", 12, 3), CalibrationOp("tanh"), CalibrationOp("conv", 8))
    ),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_templates_apply_to_other_weights(kind):
    first, other = (prepared(NETWORKS[kind], seed) for seed in (5, 6))
    seed = 20
    print(f"seed {seed}")
    schedule = edited(first, random.Random(seed))
    templates = {
        name: read_template(template_values(each)) for name, each in templates_of(first, schedule).items()
    }
    assert templates
    made, applied = with_templates(other, other.network().schedule, templates)
    assert applied == templates.keys() and made.programs
    verdict = EquivalenceChecker(other).check(other.network(made))
    assert verdict.difference is None and verdict.inputs == 0


def test_templates_that_do_not_fit_are_left_out():
    first = prepared(NETWORKS["chain"], 5)
    templates = templates_of(first, edited(first, random.Random(3)))
    smaller = prepared(
        CalibrationNetwork((7, 9, 8), NETWORKS["chain"].ops),
        5,
    )
    with pytest.raises(EditError, match="no template fits"):
        with_templates(smaller, smaller.network().schedule, templates)
    name, template = next(iter(templates.items()))
    for command in (
        TemplateCommand(8000),
        TemplateCommand(0, (("luck", 1),)),
        TemplateCommand(0, (("len", -(1 << 32)),)),
    ):
        wrong = replace(template, commands=(command,))
        with pytest.raises(EditError, match="no template fits"):
            with_templates(first, first.network().schedule, {name: wrong})
