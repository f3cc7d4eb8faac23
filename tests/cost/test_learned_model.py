"""Tests of the learned cost model: tile pipelines, features, trees, files, errors, calibration."""

import gzip
import json
import random
import time
from dataclasses import replace
from itertools import count
from math import prod
from pathlib import Path

import lightgbm
import numpy as np
import pytest
from scipy.stats import spearmanr

from compiler.commands.commands import Command, cycles
from compiler.cost.features import NAMES, FeatureRow, RowMaker, rows_of
from compiler.cost.learned_model import (
    SHIPPED,
    CycleModel,
    PredictionErrors,
    TreeEnsemble,
    energy_model,
    find_model,
    fit_machine,
    predicted_conflicts,
    spearman,
    train,
    train_spread,
)
from compiler.layers.conv.tile_model import DRAIN_COMMAND_CYCLES, SHIFT_CYCLES
from compiler.layers.registry import kind_of
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, lines, simulate_pipeline
from compiler.options import CompileOptions, DramTiming
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.calibrate import calibrate, features_of, learn
from compiler.tuning.calibration.calibration_networks import (
    KINDS,
    WEIGHT_FORMATS,
    CalibrationNetwork,
    CalibrationOp,
    chains,
    singles,
    transformers,
)
from compiler.tuning.calibration.collect import CalibrationJournal, CalibrationSample, calibration_options
from compiler.tuning.layer_space import spaces_of
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError, WorkError
from hw.isa.enums import Unit

N16, N4 = HardwareProfile(load_target("n16")), HardwareProfile(load_target("n4"))


def prepared(point: CalibrationNetwork, conditions: HardwareProfile = N16) -> ModelCompiler:
    return ModelCompiler(point.graph(), conditions.config, CompileOptions(rounding="reference"))


def test_points_are_near_multiples_of_the_array_size() -> None:
    rng = random.Random(1)
    drawn = [next(singles(16, rng)) for _ in range(300)]
    channels = [point.shape[2] for point in drawn]
    assert sum(each % 16 in (0, 1, 15) for each in channels) > len(drawn) / 2
    others = [next(source(16, rng)) for source in (chains, transformers) for _ in range(200)]
    assert {op.kind for point in (*drawn, *others) for op in point.ops} == set(KINDS)
    point = drawn[0]
    assert CalibrationNetwork.from_json(json.loads(json.dumps(point.as_json()))) == point


@pytest.mark.parametrize("width", [1, 3, 8, 16, 17, 40])
@pytest.mark.parametrize("pitch", [1, 3, 8, 16, 17, 40, 48])
def test_beats_of_lines(width: int, pitch: int) -> None:
    n, many = 16, 4096  # start positions of lines take every residue equally often
    if pitch < width:
        return
    starts = np.arange(many) * pitch
    wanted = ((starts + width - 1) // n - starts // n + 1).sum()
    if width == pitch:
        wanted = -(-many * width // n)
    assert lines(many, width, pitch, n) == pytest.approx(wanted)


def _waits(command: Command) -> int:
    """Return the cycles for which few rows of a command may wait for the weights of the tiles after the first."""
    get = {name: value for name, value in command.fields.items() if isinstance(value, int)}.get
    rows = get("x_count", 1) * get("y_count", 1)
    tiles = prod(get(f"{dim}_count", 1) for dim in ("kx", "ky", "ic", "oc"))
    return tiles * max(N16.config.n + SHIFT_CYCLES - max(rows, N16.config.tile_cycles), 0)


def test_work_of_flows_equals_that_of_the_commands() -> None:
    """The MATRIX and FUSE work predicted for a schedule equals the sum over the generated commands, except for waits
    for weights.
    """
    seed, checked = 7, 0
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        point = next(singles(16, rng))
        if point.ops[0].kind not in ("conv", "dense", "matmul", "add", "mul", "tanh", "max_pool", "avg_pool"):
            continue
        model, record = prepared(point), CompilationTrace()
        network = model.network(None, record)
        (stage,) = model.lowered(model.fusions)
        (layer,) = stage.layers
        maker = RowMaker(stage, N16)
        place = maker.context(0, maker.inside(network.schedule.layers))
        schedule = network.schedule.layers[layer.name]
        flow = kind_of(layer).tile_model(layer, schedule, place)
        if flow.count > 32:
            continue
        found = simulate_pipeline(flow, 1.0, 100)
        counted, waits = dict.fromkeys(Unit, 0), 0
        for command in record.streams[0].commands:
            counted[command.unit] += cycles(command, N16.config)
            waits += _waits(command) if command.unit == Unit.MATRIX else 0
        matrix = counted[Unit.MATRIX]
        assert 0.98 * matrix <= found.array <= 1.02 * matrix + waits, (point, schedule)
        if waits:  # outputs of several rows share blocks, which many short commands drain
            fuse = sum(command.unit == Unit.FUSE for command in record.streams[0].commands)
            assert found.fuse <= 1.05 * counted[Unit.FUSE] + DRAIN_COMMAND_CYCLES * fuse, (point, schedule)
        else:
            assert found.fuse == pytest.approx(counted[Unit.FUSE], rel=0.05), (point, schedule)
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("weights", WEIGHT_FORMATS)
@pytest.mark.parametrize(
    ("shape", "kind", "size", "window"),
    [
        ((14, 14, 64), "conv", 64, 3),
        ((7, 7, 256), "conv", 128, 1),
        ((32, 1, 256), "dense", 256, 1),
        ((1, 1, 512), "dense", 256, 1),
        ((10, 10, 64), "conv", 48, 3),
    ],
)
def test_work_of_weight_formats_equals_that_of_the_commands(
    shape: tuple[int, int, int], kind: str, size: int, window: int, weights: str
) -> None:
    """The predicted MATRIX cycles and loads follow the formats in which weights are loaded and multiplied."""
    point = CalibrationNetwork(shape, (CalibrationOp(kind, size, window, weights=weights),))
    model, record = prepared(point), CompilationTrace()
    network = model.network(None, record)
    (stage,) = model.lowered(model.fusions)
    (layer,) = stage.layers
    maker = RowMaker(stage, N16)
    schedule = network.schedule.layers[layer.name]
    flow = kind_of(layer).tile_model(layer, schedule, maker.context(0, maker.inside(network.schedule.layers)))
    found = simulate_pipeline(flow, 1.0, 100)
    counted = dict.fromkeys(Unit, 0)
    for command in record.streams[0].commands:
        counted[command.unit] += cycles(command, N16.config)
    # Tiles of zeros are skipped only where that saves more than the additional commands cost.
    error = 0.12 if weights == "zero tiles" else 0.06
    assert found.array == pytest.approx(counted[Unit.MATRIX], rel=error)
    assert found.load == pytest.approx(counted[Unit.LOAD], rel=error)


def test_buffers_and_memory_affect_the_cycles() -> None:
    tiles = [PipelineTile((("x", number, 100.0),), 100.0, 20.0, 20.0, 3) for number in range(20)]
    one, two = (simulate_pipeline(TilePipeline(tiles, 20, {"x": depth}), 1.0, 100).total for depth in (1, 2))
    assert one > 1.5 * two > 1.5 * 20 * 100
    slow = simulate_pipeline(TilePipeline(tiles, 20, {"x": 2}), 4.0, 100).total
    assert slow == pytest.approx(20 * 120 * 4, rel=0.1)
    # With the higher latency, no store is in progress when the data of a load arrive.
    late = simulate_pipeline(TilePipeline(tiles, 20, {"x": 1}), 1.0, 400).total
    assert one + 21 * 300 - 20 * 20 < late < one + 21 * 300
    long = [PipelineTile((("x", number, 100.0),), 100.0, 20.0, 20.0, 3) for number in range(200)]
    whole = simulate_pipeline(TilePipeline(long, 200, {"x": 2}), 1.0, 100)
    assert (
        whole.total - two == pytest.approx(180 * ((100 + 175 + 100) / 2 + 0.85 * 20), rel=0.02)
        and whole.array == 200 * 100
    )
    hidden = simulate_pipeline(
        TilePipeline([PipelineTile((("w", 0, 100.0),), 50.0, 5.0, 0.0, 2)], 1, {"w": 1}), 1.0, 100, 1000.0
    )
    assert hidden.start == pytest.approx(50 + 5, abs=100)


def test_rows_have_all_features_of_the_requested_layers() -> None:
    model = prepared(
        CalibrationNetwork(
            (8, 8, 16),
            (CalibrationOp("conv", 32, 3), CalibrationOp("depthwise", 0, 3), CalibrationOp("conv", 16, 1)),
        )
    )
    (stage,) = model.lowered(model.fusions)
    schedules = model.network().schedule.layers
    rows = rows_of(stage, schedules, N16)
    assert list(rows) == [layer.name for layer in stage.layers]
    assert all(len(row.numbers) == len(NAMES) and np.isfinite(row.numbers).all() for row in rows.values())
    middle = stage.layers[1].name
    assert rows_of(stage, schedules, N16, (middle,)) == {middle: rows[middle]}
    at = {name: NAMES.index(name) for name in NAMES}
    assert [row.numbers[at["first"]] for row in rows.values()] == [1, 0, 0]
    assert [row.numbers[at["last"]] for row in rows.values()] == [0, 0, 1]
    slow = rows_of(stage, schedules, HardwareProfile(N16.config, DramTiming(400, 4.0)))
    assert sum(row.base for row in slow.values()) > sum(row.base for row in rows.values()) + 300


def made_rows(seed: int, number: int) -> tuple[list[FeatureRow], list[float]]:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    numbers = rng.uniform(0, 4, (number, len(NAMES)))
    base = rng.uniform(100, 10_000, number)
    measured = base * np.exp(0.2 * (numbers[:, 3] > 2) - 0.1 * numbers[:, 5])
    return [FeatureRow(list(row), float(b)) for row, b in zip(numbers, base, strict=True)], list(measured)


def test_learning_the_residual() -> None:
    rows, measured = made_rows(3, 600)
    model = train(rows[:500], measured[:500], rounds=60)
    predicted, spread = model.predict_many(rows[500:])
    found = PredictionErrors.from_pairs(predicted, measured[500:])
    plain = PredictionErrors.from_pairs([row.base for row in rows[500:]], measured[500:])
    assert found.mape < 0.3 * plain.mape and found.spearman > 0.99
    assert (spread >= 0).all() and spread.max() > 0
    for row, many in zip(rows[500:], predicted, strict=True):
        assert model.predict(row).cycles == pytest.approx(many)
    assert CycleModel((), {}).predict(rows[0]) == (rows[0].base, 0.0)
    again = train(rows[:500], measured[:500], rounds=60)
    assert again.members == model.members  # the same seed gives the same model
    offsets = np.log(np.array(measured[:500]) / np.array([row.base for row in rows[:500]]))
    nothing, _ = train(rows[:500], measured[:500], rounds=10, offsets=offsets).predict_many(rows[:500])
    assert nothing == pytest.approx([row.base for row in rows[:500]])


def test_spread_covers_errors_and_widens_outside_the_trained_range(tmp_path: Path) -> None:
    """Errors are large where a feature is large; twice the spread covers 95% of new errors, also outside the range."""
    seed = 9
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)

    def drawn(number: int, most: float) -> tuple[np.ndarray, np.ndarray]:
        numbers = rng.uniform(0, most, (number, len(NAMES)))
        return numbers, np.abs(rng.normal(0, 0.01 * (1 + 4 * (numbers[:, 7] > 3)), number))

    numbers, errors = drawn(900, 4)
    found = train_spread(numbers, errors, [index // 3 for index in range(900)])
    assert found is not None and train_spread(numbers[:20], errors[:20], range(20)) is None
    new, wrong = drawn(400, 4)
    rows = [FeatureRow(list(each), 1.0) for each in new]
    spread, outside = CycleModel((), {}, found).predict_many(rows)[1], found.outside_range(new)
    inside = ~outside
    assert (wrong[inside] <= 2 * spread[inside]).mean() > 0.95
    assert np.median(spread[new[:, 7] > 3]) > 2 * np.median(spread[new[:, 7] < 3])
    far = numbers[0].copy()
    far[0] = 100.0
    assert found.outside_range(far) and not found.outside_range(numbers[0]) and found.outside >= found.inside
    rows, measured = made_rows(3, 200)
    model = CycleModel(train(rows, measured, rounds=5).members, {}, found)
    near, other = (FeatureRow(list(each), 100.0) for each in (numbers[0], far))
    assert model.predict(other).cycles == 100.0 and model.predict(near).cycles != 100.0
    cycles, spreads = model.predict_many([near, other])
    assert [model.predict(each) for each in (near, other)] == [
        (pytest.approx(c), pytest.approx(s)) for c, s in zip(cycles, spreads, strict=True)
    ]
    model.save(tmp_path / "m.hpm")
    assert CycleModel.load(tmp_path / "m.hpm") == model


def test_trees_equal_lightgbm() -> None:
    rows, measured = made_rows(4, 300)
    members = train(rows, measured, rounds=20).members
    numbers = np.array([row.numbers for row in rows])
    wanted = np.array([lightgbm.Booster(model_str=text).predict(numbers) for text in members]).T
    assert TreeEnsemble(members, len(NAMES)).many(numbers) == pytest.approx(wanted, abs=1e-12)


def test_model_files_round_trip(tmp_path: Path) -> None:
    rows, measured = made_rows(5, 200)
    model = train(rows, measured, about={"seed": 5}, rounds=5)
    path = tmp_path / "deep" / "m.hpm"
    size = model.save(path)
    assert path.stat().st_size == size and CycleModel.load(path) == model
    first = path.read_bytes()
    model.save(path)
    assert path.read_bytes() == first
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match="cannot be written"):
        model.save(tmp_path / "file" / "m.hpm")


def _document() -> dict:
    rows, measured = made_rows(6, 100)
    model = train(rows, measured, rounds=2)
    return {
        "format": "mla-hpm",
        "version": 2,
        "features": list(NAMES),
        "about": {},
        "members": list(model.members),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a cost model"),
        ({"version": 1}, "version 1, not 2"),
        ({"features": ["kind"]}, "other features"),
        ({"members": 3}, "not a whole"),
        ({"members": [3]}, "not a whole"),
        ({"about": None}, "not a whole"),
        ({"members": ["nothing"]}, "has no trees"),
        ({"spread": 3}, "the spread is incomplete"),
        ({"spread": {"member": "", "low": [0], "high": [], "inside": 1, "outside": 1}}, "range of a feature"),
        ({"spread": {"member": 1, "low": [], "high": [], "inside": 1, "outside": 1}}, "trees of the spread"),
        ({"spread": {"member": "", "low": 1, "high": 1, "inside": 1, "outside": 1}}, "damaged"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "m.hpm"
    path.write_bytes(gzip.compress(json.dumps(_document() | change).encode()))
    with pytest.raises(InputError, match=f"m.hpm: .*{message}.*mla calibrate -o"):
        CycleModel.load(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("split_feature=", "split_feature=999 ", "wrong number of splits"),
        ("num_leaves=", "num_leaves=1", "leaf values of a tree are not finite"),
        ("leaf_value=", "leaf_value=nan ", "leaf values of a tree are not finite"),
        ("left_child=", "left_child=0 ", "wrong number of splits"),
        ("threshold=", "threshold=x", "damaged"),
        ("right_child=", "wrong=", "damaged"),
    ],
)
def test_invalid_trees_are_rejected(tmp_path: Path, old: str, new: str, message: str) -> None:
    document = _document()
    document["members"][0] = document["members"][0].replace(old, new)
    path = tmp_path / "m.hpm"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(InputError, match=message):
        CycleModel.load(path)


def test_cyclic_children_and_unknown_features_are_rejected() -> None:
    text = _document()["members"][0]
    line = next(each for each in text.splitlines() if each.startswith("left_child="))
    loop = line.split("=")[0] + "=" + " ".join("0" for _ in line.split("=")[1].split())
    with pytest.raises(ValueError, match="a child of a tree node does not follow its parent"):
        TreeEnsemble([text.replace(line, loop)], len(NAMES))
    with pytest.raises(ValueError, match="a split of a tree uses an invalid feature"):
        TreeEnsemble([text], 1)
    right = next(each for each in text.splitlines() if each.startswith("right_child="))
    with pytest.raises(ValueError, match="two branches of a tree lead to the same node"):
        TreeEnsemble([text.replace(right, line.replace("left", "right"))], len(NAMES))


def test_missing_files_and_foreign_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"there is no such cost model; create it again with: mla calibrate -o"
    ):
        CycleModel.load(tmp_path / "absent")
    (tmp_path / "text").write_text("text")
    with pytest.raises(InputError, match="not a cost model"):
        CycleModel.load(tmp_path / "text")
    (tmp_path / "list").write_bytes(gzip.compress(b"[]"))
    with pytest.raises(InputError, match="not a cost model"):
        CycleModel.load(tmp_path / "list")
    (tmp_path / "torn").write_bytes(gzip.compress(b"{}" * 99)[:-9])
    with pytest.raises(InputError, match="not a cost model"):
        CycleModel.load(tmp_path / "torn")


def test_model_for_a_machine_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    assert find_model(N16) == CycleModel.load(SHIPPED) and SHIPPED.stat().st_size < 300_000
    assert find_model(N4) == find_model(N16)  # the features include the number of lanes
    rows, measured = made_rows(8, 100)
    own = train(rows, measured, rounds=2)
    own.save(tmp_path / "hpm" / f"{N4.key}.hpm")
    assert find_model(N4) == own


def test_shipped_model_is_fast() -> None:
    model = find_model(N16)
    stage, *_ = (chosen := prepared(CalibrationNetwork((8, 8, 32), (CalibrationOp("conv", 32, 3),)))).lowered(
        chosen.fusions
    )
    (row,) = rows_of(stage, chosen.network().schedule.layers, N16).values()
    best = min(_taken(lambda: model.predict(row)) for _ in range(200))
    print(f"{1e6 * best:.1f} us")
    assert model.error is not None and 0.5 < model.predict(row).cycles / row.base < 2


def _taken(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def test_prediction_errors_equal_scipy() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(1, 20, 50).astype(float), rng.integers(1, 20, 50).astype(float)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b)[0])
    found = PredictionErrors.from_pairs([110, 90], [100, 100])
    assert (found.count, found.spearman) == (2, 1.0) and found.mape == pytest.approx(10)
    assert PredictionErrors.from_pairs([], []).as_json() == {"count": 0, "mape": 0.0, "spearman": 1.0}


def samples(number_of: int, seed: int) -> list[CalibrationSample]:
    """Return samples with made-up cycles that are proportional to the base feature."""
    rng, out = random.Random(seed), []
    for index in range(number_of):
        point = next(singles(4, rng))
        model = ModelCompiler(point.graph(), N4.config, calibration_options(N4))
        if model.host or len(model.lowered(model.fusions)) != 1:
            continue
        (stage,) = model.lowered(model.fusions)
        first = model.network().schedule
        spaces = spaces_of(N4.config, [stage], N4.dram)
        for number in range(2):
            layers = {
                name: spaces[name].draw(rng, each) if number else each for name, each in first.layers.items()
            }
            rows = rows_of(stage, layers, N4)
            cycles_of = {name: int(row.base * (1.1 if row.numbers[0] else 1.3)) for name, row in rows.items()}
            out.append(CalibrationSample(index, number, point, layers, cycles_of))
    return out


def test_errors_are_those_of_held_out_points() -> None:
    measured = samples(90, 11)  # enough for most held-out points to lie within the range of the others
    found = learn(N4, measured, 5)
    assert found.samples == len(measured) and found.fresh == 5
    kept = [each for each in measured if each.index % 6 == 0]
    assert found.single.count == len(kept) and found.chain.count == 0 and found.single.mape < 8
    assert found.model.about["samples"] == len(measured)
    assert [len(each.rows) for each in features_of(kept, N4)] == [1] * len(kept)


def test_journal(tmp_path: Path) -> None:
    path, made = tmp_path / "j" / "points.jsonl", samples(2, 3)
    journal = CalibrationJournal(path, "key", 1)
    for sample in made:
        journal.add(sample)
    journal.finish(0)
    with path.open("a") as file:
        file.write('{"index": 1, "torn')
    again = CalibrationJournal(path, "key", 1)
    assert again.samples == made and again.done == {0}
    again.finish(1)
    assert CalibrationJournal(path, "key", 1).done == {0, 1}
    with pytest.raises(InputError, match="remove it to start over"):
        CalibrationJournal(path, "other", 1)
    with pytest.raises(InputError, match="remove it to start over"):
        CalibrationJournal(path, "key", 2)
    path.write_text(path.read_text() + '{"index": 1}\n')
    with pytest.raises(InputError, match=r"damaged line.*remove the file"):
        CalibrationJournal(path, "key", 1)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="cannot be read"):
        CalibrationJournal(path, "key", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match="cannot be written"):
        CalibrationJournal(tmp_path / "file" / "x", "key", 1)


def test_calibration_resumes_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed calibration makes only the missing measurements (on the golden model, since cycles are irrelevant
    here).
    """
    monkeypatch.setattr(
        "compiler.tuning.calibration.collect.CalibrationCollector._open",
        lambda _self: GoldenDevice(N4.config, 1 << 24),
    )
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "compiler.tuning.calibration.collect.CalibrationCollector._measure",
        lambda self, _device, tries, index, number, network: (
            asked.append((index, number)),
            self.journal.add(
                CalibrationSample(
                    index,
                    number,
                    tries.point,
                    dict(network.schedule.layers),
                    dict.fromkeys(network.schedule.layers, int(100 + index)),
                )
            ),
        ),
    )
    clock = count()
    monkeypatch.setattr("compiler.tuning.calibration.collect.monotonic", lambda: next(clock) / 100)
    said: list[str] = []
    path = tmp_path / "points.jsonl"
    first = calibrate(N4, 2.0, CalibrationJournal(path, N4.key, 0), spaces_of, log=said.append)
    assert first.fresh == len(asked) == first.samples and any("training on" in text for text in said)
    lines_ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines_[:-3]))
    before, journal = set(asked), CalibrationJournal(path, N4.key, 0)
    kept = {(sample.index, sample.number) for sample in journal.samples}
    asked.clear()
    second = calibrate(N4, 2.0, journal, spaces_of)
    assert kept < before and not kept & set(asked) and second.samples == len(kept) + second.fresh
    with pytest.raises(WorkError, match="increase the time limit"):
        calibrate(N4, 0.0, CalibrationJournal(tmp_path / "new.jsonl", N4.key, 0), spaces_of)


def test_energy_does_not_depend_on_the_memory() -> None:
    point = CalibrationNetwork((12, 12, 24), (CalibrationOp("conv", 40, 3),))
    model = prepared(point)
    (stage,) = model.lowered(model.fusions)
    schedules = model.network().schedule.layers
    slow = HardwareProfile(N16.config, DramTiming(400, 4.0, 0.25))
    rows = [next(iter(rows_of(stage, schedules, each).values())) for each in (N16, slow)]
    first, second = (row.for_energy for row in rows)
    assert first.numbers == pytest.approx(second.numbers) and first.base == pytest.approx(second.base)
    cycles, spread = energy_model().predict_many([first, second])
    assert cycles[0] == pytest.approx(cycles[1]) and (spread > 0).all()
    # At least the products and the transfers of weights, input and output.
    assert cycles[0] > (12 * 12 * 9 * 24 * 40 * 0.3 + (9 * 24 * 40 + 144 * 64) * 160) / 1e3


def test_throttled_clock_stretches_the_cycles() -> None:
    point = CalibrationNetwork((12, 12, 24), (CalibrationOp("conv", 40, 3),))
    model = prepared(point)
    (stage,) = model.lowered(model.fusions)
    schedules = model.network().schedule.layers
    usual, half = DramTiming(200, 8.0), DramTiming(400, 4.0, 0.5)  # equal in cycles of the chip's clock
    rows = [
        next(iter(rows_of(stage, schedules, HardwareProfile(N16.config, each)).values()))
        for each in (usual, half)
    ]
    assert rows[0].numbers == rows[1].numbers and rows[1].base == pytest.approx(2 * rows[0].base)
    keys = {HardwareProfile(N16.config, each).key for each in (usual, half, DramTiming(400, 4.0))}
    assert len(keys) == 3


def test_bank_conflicts_are_expected_where_buffers_share_banks() -> None:
    point = CalibrationNetwork((16, 16, 16), (CalibrationOp("conv", 32, 3),))
    model = prepared(point)
    (stage,) = model.lowered(model.fusions)
    ((name, schedule),) = model.network().schedule.layers.items()
    few, many = (
        rows_of(stage, {name: replace(schedule, acc_buffers=count)}, N16)[name]
        for count in (2, N16.config.acc_banks + 1)
    )
    expected = predicted_conflicts([few, many])
    assert expected[0] < 0.001 * few.base and expected[1] > 0.01 * many.base


def test_models_of_a_machine_fit_estimate_and_commands(tmp_path: Path) -> None:
    rows = [row for seed in range(60) for row in _rows_of_random_layer(random.Random(seed))]
    commands = np.array(
        [
            np.exp(row.numbers[NAMES.index("log_tiles")]) * row.numbers[NAMES.index("commands_per_tile")]
            for row in rows
        ]
    )
    true = 0.7 * np.array([row.base for row in rows]) + 80 * commands
    assert fit_machine(rows, true) == pytest.approx((0.7, 80), rel=1e-3)
    model = CycleModel((), {}, machine=fit_machine(rows, true))
    assert model.predict_many(rows)[0] == pytest.approx(true, rel=1e-3)
    assert model.predict(rows[0]).cycles == pytest.approx(true[0], rel=1e-3)
    model.save(tmp_path / "m.hpm")
    assert CycleModel.load(tmp_path / "m.hpm") == model


def _rows_of_random_layer(rng: random.Random) -> list[FeatureRow]:
    model = prepared(next(singles(16, rng)))
    if model.host or len(model.lowered(model.fusions)) != 1:
        return []
    (stage,) = model.lowered(model.fusions)
    return list(rows_of(stage, model.network().schedule.layers, N16).values())
