"""The public names of `import compiler` are imported lazily, documented, and usable."""

import importlib
import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import compiler
from hw.errors import InputError
from scripts.networks.digits import MODEL

#: Packages that are slow to import and that `import compiler` must not load.
HEAVY = ("numpy", "networkx", "onnx", "tflite", "amaranth", "scipy", "sqlalchemy", "lightgbm")


def test_import_loads_no_heavy_packages():
    code = f"import compiler, sys; print(sorted(sys.modules.keys() & set({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_compiler_loads_networkx_only_when_needed():
    code = "import compiler.api, sys; print('networkx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_all_lists_public_names():
    assert set(compiler.__all__) == {
        "AccuracyBudget",
        "CompileOptions",
        "CompiledNetwork",
        "Generator",
        "Schedule",
        "SearchMethod",
        "Session",
        "compile",
        "open_device",
        "prune",
        "tune",
    }
    assert set(compiler.__all__) <= set(dir(compiler))
    with pytest.raises(AttributeError, match="no attribute 'compiled'"):
        compiler.compiled  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", compiler.__all__)
def test_each_name_is_documented_with_an_example(name):
    value = getattr(compiler, name)
    assert getattr(compiler, name) is value
    text = inspect.getdoc(value)
    assert text is not None and "Examples\n--------\n>>> " in text


@pytest.mark.parametrize("package", ["compiler", "cosim", "hw"])
def test_packages_have_py_typed_marker(package):
    file = importlib.import_module(package).__file__
    assert file is not None and (Path(file).parent / "py.typed").exists()


def test_options_reject_an_unknown_rounding():
    wrong = "rounding must be reference or xnnpack or onnxruntime, not 'x'"
    with pytest.raises(InputError, match=wrong):
        compiler.CompileOptions(rounding="x")
    with pytest.raises(InputError, match=wrong):
        replace(compiler.CompileOptions(rounding="xnnpack"), rounding="x")


def test_compile_run_and_schedule():
    network = compiler.compile(MODEL, "n4", cache=False)
    assert isinstance(network, compiler.CompiledNetwork)
    sample = (
        np.random.default_rng(0).integers(-128, 128, network.inputs[0].shape).astype(network.inputs[0].dtype)
    )
    expected = network(sample)
    schedule = compiler.Schedule.from_json(network.schedule.to_json())
    same = compiler.compile(MODEL, "n4", cache=False, schedule=schedule)
    with compiler.open_device(same, "golden") as device:
        outputs = compiler.Session(device, same).run({same.inputs[0].name: sample})
    assert outputs.keys() == expected.keys()
    assert all(np.array_equal(outputs[name], expected[name]) for name in outputs)


def test_open_device_defaults_to_rtl():
    network = compiler.compile(MODEL, "n4")
    said: list[str] = []
    with compiler.open_device(network, say=said.append) as device:
        outputs, cycles = compiler.Session(device, network).measure(
            {each.name: np.zeros(each.shape, each.dtype) for each in network.inputs}
        )
    assert cycles > 0 and outputs and said
    for bad in ({"kind": "fpga"}, {"samples": 0}, {"network": "model"}):
        with pytest.raises(InputError, match=f"{next(iter(bad))} must be"):
            compiler.open_device(**{"network": network, "kind": "golden"} | bad)  # type: ignore[arg-type]


class Halve(compiler.SearchMethod):
    """Search method that halves the rows of one random layer per proposal."""

    def propose(self):
        schedule = self.best.schedule
        name = self.rng.choice(list(schedule.layers))
        layer = schedule.layers[name]
        layer = replace(layer, rows=max(1, layer.rows // 2))
        return replace(schedule, layers=schedule.layers | {name: layer})

    def learn(self, trial):
        pass


class HalfRows(compiler.Generator):
    """Generator that halves the rows of each layer in turn."""

    name = "half-rows"

    def propose(self, task):
        for layer in task.layers:
            now = task.schedule.layers[layer]
            yield task.with_layers({layer: replace(now, rows=max(1, now.rows // 2))}, self.name, "rows")


def test_tune(tmp_path):
    heard: list[int] = []
    found = compiler.tune(
        MODEL,
        "n4",
        trials=3,
        method="random",
        database=tmp_path / "x.db",
        seed=1,
        on_trial=lambda number, _trial, best: heard.append(number),
    )
    assert heard == [1, 2, 3] and len(found.trials) == 3 and found.cached_count == 0
    network = compiler.compile(MODEL, "n4", schedule=found.best.schedule)
    assert network.schedule == found.best.schedule
    again = compiler.tune(MODEL, "n4", trials=3, method="random", database=tmp_path / "x.db", seed=1)
    assert again.cached_count == 3
    options = compiler.CompileOptions(rounding="onnxruntime", batch=2)
    assert compiler.tune(MODEL, "n4", trials=1, options=options).baseline.cycles > found.baseline.cycles


def test_tune_accepts_method_class_and_generator_instance():
    assert len(compiler.tune(MODEL, "n4", trials=2, method=Halve).trials) == 2
    found = compiler.tune(MODEL, "n4", trials=2, generator=HalfRows())
    assert len(found.trials) == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"trials": 0}, "trials must be at least 1"),
        ({"goal": "speed"}, "goal must be latency, energy, throughput, not 'speed'"),
        ({"method": "luck"}, "a search method must be one of"),
        ({"forbid": ["luck"]}, "luck"),
        ({"options": {"batch": 2}}, "options must be CompileOptions or None"),
        ({"target": 4}, "target must be"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_tune_rejects_bad_arguments(bad, message):
    with pytest.raises(InputError, match=message):
        compiler.tune(**{"model": MODEL, "target": "n4", "trials": 1} | bad)
