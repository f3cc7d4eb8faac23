"""Measures learned macro-instructions in other networks: five networks are tuned, five others are only compiled.

Each other network belongs to the family of a tuned one, but has other weights, another depth and other classes. It is
compiled twice, without the database and with the database that the searches have filled, and both are measured on the
RTL with checked outputs. The measurements of the searches are in the database, so an interrupted run continues.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

import compiler
from compiler.bench.architectures import FloatBuilder
from compiler.cache.model_source import ModelSource
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.macro_instructions import MacroInstruction
from compiler.util.tables import Column, figures, format_table
from hw.config import load_target
from scripts.jsonl_log import JsonlLog

#: Size of the images, and size of the encoder: tokens, width and heads.
SIZE, TOKENS, WIDTH, HEADS = 14, 16, 32, 2


def resnet(seed: int, blocks: int, classes: int) -> onnx.ModelProto:
    """Return a residual network with three stages of 16, 32 and 64 channels."""
    net = FloatBuilder("resnet", seed)
    x = net.norm_relu(net.conv(net.image("image", SIZE), "stem", 16, 3))
    for stage in range(3):
        for number in range(blocks):
            name, width = f"block{stage}.{number}", 16 << stage
            stride = 2 if stage and not number else 1
            y = net.norm_relu(net.conv(x, f"{name}.a", width, 3, stride))
            y = net.norm(net.conv(y, f"{name}.b", width, 3), 0.5)
            if stride > 1:
                x = net.norm(net.conv(x, f"{name}.project", width, 1, stride))
            x = net.relu(net.add(y, x, f"{name}.sum"))
    net.classifier(x, "logits", classes)
    return net.finish(logits=(1, classes))


def mobilenet_v1(seed: int, blocks: int, classes: int) -> onnx.ModelProto:
    """Return a chain of depthwise and pointwise convolutions; `blocks` of 128 channels."""
    net = FloatBuilder("mobilenet_v1", seed)
    stages = [(32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * blocks, (256, 2)]
    x, width = net.norm_relu(net.conv(net.image("image", SIZE), "stem", 16, 3), most=6), 16
    for number, (outputs, stride) in enumerate(stages):
        x = net.norm_relu(net.conv(x, f"depthwise{number}", width, 3, stride, width), most=6)
        x = net.norm_relu(net.conv(x, f"pointwise{number}", outputs), most=6)
        width = outputs
    net.classifier(x, "logits", classes)
    return net.finish(logits=(1, classes))


def mobilenet_v2(seed: int, blocks: int, classes: int) -> onnx.ModelProto:
    """Return inverted residual blocks; `blocks` of 32 channels."""
    net = FloatBuilder("mobilenet_v2", seed)
    stages = [(24, 2), (24, 1), (32, 2), *[(32, 1)] * blocks, (48, 2), (48, 1)]
    x, width = net.norm_relu(net.conv(net.image("image", SIZE), "stem", 16, 3), most=6), 16
    for number, (outputs, stride) in enumerate(stages):
        name = f"block{number}"
        y = net.norm_relu(net.conv(x, f"{name}.expand", 4 * width), most=6)
        y = net.norm_relu(net.conv(y, f"{name}.depthwise", 4 * width, 3, stride, 4 * width), most=6)
        y = net.norm(net.conv(y, f"{name}.project", outputs))
        x = net.add(x, y, f"{name}.sum") if stride == 1 and width == outputs else y
        width = outputs
    net.classifier(x, "logits", classes)
    return net.finish(logits=(1, classes))


def plain(seed: int, blocks: int, classes: int) -> onnx.ModelProto:
    """Return 3x3 convolutions with pools between three sizes; `blocks` at each size."""
    net = FloatBuilder("plain", seed)
    x = net.image("image", SIZE)
    for stage, width in enumerate((24, 40, 72)):
        for number in range(blocks):
            x = net.norm_relu(net.conv(x, f"conv{stage}.{number}", width, 3))
        if stage < 2:
            x = net.max_pool(x, f"pool{stage}")
    net.classifier(x, "logits", classes)
    return net.finish(logits=(1, classes))


def encoder(seed: int, blocks: int, classes: int) -> onnx.ModelProto:
    """Return transformer encoder layers as in BERT, and a dense layer."""
    net = FloatBuilder("encoder", seed)
    x = net.input("tokens", (1, TOKENS, WIDTH))
    apart = net.constant("apart", np.array([1, TOKENS, HEADS, WIDTH // HEADS], np.int64))
    together = net.constant("together", np.array([1, TOKENS, WIDTH], np.int64))
    root = net.constant("root", np.float32(np.sqrt(WIDTH // HEADS)))
    for number in range(blocks):
        each = f"layer{number}"

        def heads(name: str, perm: list[int], x: str = x, each: str = each) -> str:
            made = net.linear(x, f"{each}.{name}", WIDTH, WIDTH)
            split = net.node("Reshape", [made, apart], f"{each}.{name}.split")
            return net.node("Transpose", [split], f"{each}.{name}.heads", perm=perm)

        def normed(x: str, name: str, each: str = each) -> str:
            gamma = net.constant(f"{each}.{name}.weight", net.rng.uniform(0.8, 1.2, WIDTH).astype(np.float32))
            beta = net.constant(f"{each}.{name}.bias", net.normal(WIDTH, scale=0.05))
            return net.node("LayerNormalization", [x, gamma, beta], f"{each}.{name}", axis=-1, epsilon=1e-12)

        query, key, value = (
            heads(name, perm)
            for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = net.node("Div", [net.node("MatMul", [query, key], f"{each}.scores"), root], f"{each}.scaled")
        shares = net.node("Softmax", [scores], f"{each}.attention", axis=-1)
        mixed = net.node("MatMul", [shares, value], f"{each}.mixed")
        back = net.node("Transpose", [mixed], f"{each}.back", perm=[0, 2, 1, 3])
        joined = net.node("Reshape", [back, together], f"{each}.joined")
        attended = net.linear(joined, f"{each}.attended", WIDTH, WIDTH)
        y = normed(net.node("Add", [attended, x], f"{each}.sum"), "middle")
        inner = net.node("Relu", [net.linear(y, f"{each}.inner", WIDTH, 4 * WIDTH)], f"{each}.relu")
        outer = net.linear(inner, f"{each}.outer", 4 * WIDTH, WIDTH)
        x = normed(net.node("Add", [outer, y], f"{each}.more"), "encoded")
    net.linear(x, "logits", WIDTH, classes)
    return net.finish(logits=(1, TOKENS, classes))


#: Families of networks with the blocks of the tuned network and of the other one.
FAMILIES: dict[str, tuple[Callable[[int, int, int], onnx.ModelProto], int, int]] = {
    "resnet": (resnet, 1, 2),
    "mobilenet_v1": (mobilenet_v1, 2, 4),
    "mobilenet_v2": (mobilenet_v2, 2, 4),
    "plain": (plain, 2, 3),
    "encoder": (encoder, 1, 2),
}


@dataclass(frozen=True)
class OtherNetwork:
    """Measurement of a network that was not tuned.

    Parameters
    ----------
    name : str
        Name of the network.
    static, learned : int
        Cycles with the static compiler's programs, and with macro-instructions from the database.
    layers, changed : int
        Number of layers, and number of layers that are executed by macro-instructions.
    macros : tuple of str
        Names of the macro-instructions that it uses.
    """

    name: str
    static: int
    learned: int
    layers: int
    changed: int
    macros: tuple[str, ...]


def main() -> int:
    """Tune the first networks, measure the others, and print the tables."""
    parser = argparse.ArgumentParser(description="Measure learned macro-instructions in other networks.")
    parser.add_argument("--folder", type=Path, required=True, help="folder for models, database and results")
    parser.add_argument(
        "--trials", type=int, default=150, help="trials of each search (default: %(default)s)"
    )
    parser.add_argument("--method", default="edits", help="search method (default: %(default)s)")
    parser.add_argument("--target", default="n16", help="target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the searches (default: %(default)s)")
    parser.add_argument(
        "--families",
        nargs="+",
        choices=FAMILIES,
        default=[*FAMILIES],
        help="families of networks (default: all)",
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with TuningDatabase(args.folder / "macros.db") as database:
        tuned = [_tuned(args, name, database) for name in args.families]
        print(format_table([Column("tuned"), *figures("static", "best", "saved")], tuned))
        log = JsonlLog(args.folder / "others.jsonl")
        known = {each["name"]: each for each in log.read()}
        others = []
        for name in args.families:
            if name not in known:
                known[name] = json.loads(json.dumps(asdict(_other(args, name, database))))
                log.add(known[name])
            others.append(OtherNetwork(**known[name] | {"macros": tuple(known[name]["macros"])}))
        macros = {macro.name: macro for macro, _ in database.all_macros()}
    _print_others(others, macros)
    return 0


def _model(args: argparse.Namespace, name: str, *, other: bool) -> Path:
    """Return the file of a network, which is written on first use."""
    build, first, second = FAMILIES[name]
    file = args.folder / f"{name}{'_other' if other else ''}.onnx"
    if not file.exists():
        onnx.save(build(2, second, 7) if other else build(1, first, 10), file)
    return file


def _tuned(args: argparse.Namespace, name: str, database: TuningDatabase) -> list[str]:
    """Tune a network, and return a row with its cycles."""
    found = compiler.tune(
        _model(args, name, other=False),
        args.target,
        trials=args.trials,
        method=args.method,
        seed=args.seed,
        database=database,
        on_trial=lambda number, _trial, best: print(f"{name} {number} {best.cost:,.0f}", file=sys.stderr),
    )
    before, best = found.baseline.cycles, found.best.cost or 0.0
    return [name, f"{before:,}", f"{best:,.0f}", f"{1 - best / before:.1%}"]


def _other(args: argparse.Namespace, name: str, database: TuningDatabase) -> OtherNetwork:
    """Compile a network without and with the database, and measure both."""
    model = _model(args, name, other=True)
    static = compiler.compile(model, args.target, database=False)
    learned = compiler.compile(model, args.target, database=database)
    source = ModelSource(model)
    options = CompileOptions(rounding=source.rounding)
    config = load_target(args.target)
    with Measurer(source.graph, HardwareProfile(config, options.dram), options) as measurer:
        before, after = (_cycles(measurer, each) for each in (static, learned))
    used = [each.macro for each in learned.sources if each.macro]
    return OtherNetwork(name, before, after, len(learned.infos), len(used), tuple(dict.fromkeys(used)))


def _cycles(measurer: Measurer, network: CompiledNetwork) -> int:
    """Return the cycles of a network, after its texts were accepted and its outputs checked."""
    (result,) = measurer.measure([network.schedule])
    if not isinstance(result, Measurement) or not result.valid:
        raise SystemExit(f"{network.name}: {result}")
    return result.cycles


def _print_others(others: list[OtherNetwork], macros: dict[str, MacroInstruction]) -> None:
    """Print the networks that were not tuned, and the sums."""
    rows = [
        [
            each.name,
            f"{each.static:,}",
            f"{each.learned:,}",
            f"{1 - each.learned / each.static:.1%}",
            f"{each.changed} of {each.layers}",
            f"{len(each.macros)}",
            f"{sum(macros[name].templates for name in each.macros if name in macros)}",
        ]
        for each in others
    ]
    columns = figures("static", "learned", "saved", "layers", "macros", "with templates")
    print(format_table([Column("other network"), *columns], rows))
    names = {name for each in others for name in each.macros}
    saved = sum(each.static - each.learned for each in others)
    print(f"{len(names)} learned macro-instructions are used; {saved:,} cycles are saved")


if __name__ == "__main__":
    sys.exit(main())
