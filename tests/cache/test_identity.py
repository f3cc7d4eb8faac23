"""Stored data do not depend on the Python names of types, fields and members; expected contents are literals."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

import compiler.llm.generate.known_layers
import compiler.pipeline
import compiler.runtime.package_writer
import compiler.tuning.calibration.collect
import compiler.tuning_db.database  # noqa: F401  like the others above: all types that are stored
from compiler.cache.digest import name, shape_of
from compiler.cost.features import NAMES
from compiler.ir import identity as module
from compiler.ir.identity import identities, identity, restored, stored
from compiler.layers.base import Image, Layer
from compiler.layers.registry import LAYER_KINDS, kind_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.options import DramTiming, MemoryLimits
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.program_override import ProgramText
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db import entries
from compiler.tuning_db.entries import options_of, subgraph_of
from hw.config import load_target
from hw.isa.enums import Dtype, Unit
from tests.cache.test_digest import graph
from tests.tuning_db.random_entries import FIRST_KEY_VERSION
from tests.tuning_db.test_keys_and_distances import layers

#: Stable names, none of which may ever change. A new type or field is added here; a new field of a type that has
#: digests changes the digests of all values of the type.
STABLE = {
    "AccuracyBudget": "worse sqnr_db labels share",
    "Addend": "tensor stage fields",
    "BSource": "NONE ACC SP",
    "CascadeReport": "budget samples threshold changed expected limit fallbacks cycles exact_cycles layers",
    "ChosenInt16": "nodes before_db sqnr_db met",
    "Compare": "ALWAYS EQ NE LT GE LTU GEU",
    "ConvLayer": (
        "name nodes ops x y shapes macs batch weights drain strides pads dilations groups x_zp w_zp outputs_per_group "
        "factors correction planes"
    ),
    "ConvTransposeLayer": "name nodes ops x y shapes macs batch phases strides merged blocks",
    "Copy": "source walk rescale fill",
    "DepthwiseLayer": "name nodes ops x y shapes macs batch weights drain strides pads dilations x_zp w_zp counts "
    "multiplier correction",
    "Drain": "bias mult exponent zp clip rounding dtype residual table negative",
    "Dram": "latency bytes_per_cycle throttle",
    "Dtype": "I8 U8 I16 I32",
    "DynamicLayer": "name nodes ops x y shapes macs batch makes",
    "ElementwiseLayer": "name nodes ops x y shapes macs batch other spread stream src stage fields table drain "
    "factor groups rows together row_multiplier extreme",
    "Execution": "key when cycles utilization where load_bytes store_bytes conflicts reuse energy_uj bound network "
    "macro",
    "Extreme": "greatest scaling",
    "Floor": "macs bytes skipped",
    "GraphState": "input output initial",
    "Guard": "compare selector value",
    "HostCosts": "operators other stage clock",
    "HostNode": "node op reason edge",
    "HpmOp": "kind size window stride groups weights",
    "Image": "h w c dtype",
    "Key": "subgraph profile options",
    "Layer": "name nodes ops x y shapes macs batch",
    "LayerBits": "node bits weights",
    "LayerCycles": "names cycles where energy_uj conflicts",
    "LayerInfo": "name nodes ops floor tag program shape",
    "KnownLayer": "network layer word lanes features schedules",
    "LayerSchedule": (
        "rows band width columns depth slots slot_buffers order x_buffers w_buffers y_buffers acc_buffers "
        "fold strips together prefetch on_chip overlap common_scale ramp taper planes joined counted strip_width "
        "stream_row_blocks kept_weights packed_weights"
    ),
    "LengthRange": "name values",
    "Limits": "sp_bytes acc_bytes dram_bytes",
    "MatmulLayer": (
        "name nodes ops x y shapes macs batch a b out transposed size mult exponent rounding clip table bands "
        "residual summand"
    ),
    "Measurement": "cycles layers energy_uj dram_bytes exact floor test_inputs",
    "MlaConfig": (
        "n bus_bytes sp_bytes acc_bytes sp_banks acc_banks wis_words segments opcodes candidates queue_depth "
        "param_slots table_slots weight_rows packed_loads wide sparse line_depth fuse_rate reciprocal_units tags "
        "loop_depth "
        "call_depth max_burst windows serial_commands pipelined"
    ),
    "MoveLayer": "name nodes ops x y shapes macs batch copies constants",
    "NetworkState": "input output initial",
    "Node": "name op inputs outputs attributes bodies",
    "NormLayer": "name nodes ops x y shapes macs batch centred x_zp epsilon bias mult exponent power unit "
    "y_zp clip factor by_mean",
    "NodeLimit": "node share",
    "Op": "PASS ADD SUB MUL SQUARE MUL_SUB",
    "Options": (
        "rounding schedule strict calibration seed offset batch batches skip keep_float int16 single dram limits "
        "fuse enable disable host keep_on_accelerator host_costs unroll accuracy_budget reuse lengths batch_schedules"
    ),
    "OutputLimits": "output nodes int16",
    "OutputReport": "name max_abs sqnr_db top1 quantized values left_out",
    "PReluLayer": (
        "name nodes ops x y shapes macs batch other spread stream src stage fields table drain factor "
        "groups rows together row_multiplier extreme slopes slope_dtype x_zp slope_zp y_zp positive negative rounding "
        "clip"
    ),
    "Phase": "conv offset block",
    "Point": "shape ops",
    "PixelRun": "first step count source stride weights",
    "PoolLayer": "name nodes ops x y shapes macs batch kernel strides pads average clip x_zp scaled weights drain w_zp",
    "Post": "NONE SCALE COUNT RECIP RSQRT ROW SLOT VAR_RSQRT",
    "ProgramText": "replaces text",
    "Quantization": "scale zero_point axis",
    "QuantizationReport": "samples measured random outputs tensors kept limits ranges weights int16 cascade",
    "Reduce": "NONE SUM MAX MIN",
    "ReduceLayer": "name nodes ops x y shapes macs batch how dims lanes x_zp post rounding fields",
    "Rejected": "stage reason form",
    "Removed": "node op reason channels removed",
    "Rewritten": "node op pass change bound",
    "Requant": "OFF SLOT ROW IMM",
    "Rescale": "x_zp y_zp mult exponent rounding",
    "Residual": "tensor stage fields",
    "ResizeLayer": "name nodes ops x y shapes macs batch rows columns packed rounding zero_point",
    "Rounding": "DOUBLE SINGLE EVEN AWAY",
    "RowMultiplier": "mult exponent shift",
    "Sample": "index number point schedules layers energy_uj conflicts",
    "Schedule": "fusions layers programs",
    "Regions": "image windows base modulus",
    "Smaller": "batch floor infos",
    "SoftmaxLayer": "name nodes ops x y shapes macs batch scale step y_zp clip centred across",
    "Space": "SP PARAM TABLE",
    "Spread": "ALL CHANNEL PIXEL SCALAR",
    "Stack": "name dtype zp starts pitch constant",
    "Tensor": "name shape dtype quantization data group",
    "TensorReport": "name scale zero_point method sqnr_db node alone_db",
    "Unit": "LOAD MATRIX FUSE STORE",
    "Violation": "cascade budget audited changed lower when",
    "Walk": "dims x y",
    "WideQuality": "nodes sqnr_db",
    "WeightReport": "samples sqnr_db worse changed expected right right_before layers held_out permitted",
}


def test_no_stable_name_has_changed():
    assert {each.name: " ".join(each.parts.values()) for each in identities().values()} == STABLE


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        (lambda: name(graph()), "b9b2f4785884888e2b9ae06b80d7473a66b329e44fcb45b0e11bcbaa50e5c516"),
        (
            lambda: name(LayerSchedule(order="channels")),
            "5279f2cc39b1ed663a66b4a67339bc3a241be13e0d93918e07608c98590ee1f8",
        ),
        (
            lambda: name(
                Schedule((("a", "b"),), {"a": LayerSchedule(rows=3)}, {"p": ProgramText("00", "halt")})
            ),
            "0754575cda70e64d89d3392af69c9c3c416a72b5b6d0030ef86eea6d53640bd4",
        ),
        (
            lambda: name(
                Unit.FUSE, [1, 2.5, "x", b"y", None, True], {"k": np.arange(6, dtype=np.int16).reshape(2, 3)}
            ),
            "09d17e4dec3b2da292b209cc005b10c93ffa67dcc4ecdcbcf6fb5a866de25a08",
        ),
        (
            lambda: HardwareProfile(load_target("n16"), DramTiming(200, 8.0)).key,
            "a6cf90bfb7688e98cbd9725f0ba51efa285e7dcc081ee99b874dfba3ef1e3166",
        ),
        (lambda: subgraph_of(layers()), "f1aa845d963daef0c97836bdc6d62079efcd641895c4ccf7d7ad597b6f7747b6"),
        (lambda: shape_of(layers()), "416e8a4f278e23aec4880a3164680399f885d0c08336e75b3ccb3b4db8f196e6"),
        (
            lambda: options_of(rounding="reference", limits=MemoryLimits(dram_bytes=5)),
            "d08694827f77a7c62279b7006a42f9e64b0a9b8a5c643f8dcccfcd030ea57856",
        ),
    ],
    ids=["graph", "layer schedule", "schedule", "values", "conditions", "subgraph", "shape", "options"],
)
def test_digests_equal_those_of_commit_077e149(value: Any, digest: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(entries, "KEY_VERSION", FIRST_KEY_VERSION)
    assert value() == digest


def hash_of(words: Any) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def test_vocabulary_and_features_of_shipped_models():
    """The words of the language model and the features of the cost model, and the order of both, are unchanged."""
    # The model was trained with the first 909 words; "packed=1" was "int4=1", which no program contained.
    assert (
        hash_of(LANGUAGE.tokens[:909]) == "7ba67e83a467fb986ae635af7a3710f803fdc52114ead45318d6f2c806cef44d"
    )
    assert hash_of(LANGUAGE.tokens) == "511ab748844e60f41d3f97ce3054ebf6f99cb361a159bf4dd0a1bcde4750affb"
    assert hash_of(NAMES) == "04bb43f32d2b2dbd9822db24d31b0f11c814cb36028de1b55d037514f3c489ed"
    assert [kind.name for kind in LAYER_KINDS][:12] == [
        "conv",
        "depthwise",
        "matmul",
        "pool",
        "elementwise",
        "softmax",
        "norm",
        "reduce",
        "move",
        "prelu",
        "dynamic",
        "convtranspose",
    ]


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield from (each, *subclasses(each))


def test_every_layer_has_a_kind():
    found = [each for each in subclasses(Layer) if each.__module__.startswith("compiler.")]
    assert sorted(found, key=str) == sorted((kind.layer for kind in LAYER_KINDS), key=str)
    assert len({kind.name for kind in LAYER_KINDS}) == len(LAYER_KINDS)
    assert {kind_of(layer).name for layer in layers()} == {"conv"}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_IDENTITIES", dict(identities()))


def test_renamed_type_keeps_its_digest(fresh: None, monkeypatch: pytest.MonkeyPatch):
    @dataclass
    class Old:
        size: int
        how: "OldHow"

    class OldHow(Enum):
        FAST = 1

    @dataclass
    class New:
        n_bytes: int
        mode: "NewHow"

    class NewHow(Enum):
        QUICK = 1

    found = []
    versions: list[Any] = [(Old, OldHow, OldHow.FAST), (New, NewHow, NewHow.QUICK)]
    for kind, how, value in versions:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_IDENTITIES", {})
            identity("Thing", "size", "how")(kind)
            identity("How", "FAST")(how)
            found.append(name(kind(3, value)))
            assert stored(kind(3, value)) == {"size": 3, "how": value}
            assert restored(kind, {"how": value, "size": 3}) == kind(3, value)
    assert found[0] == found[1]


def test_subclass_inherits_the_names_of_its_base(fresh: None):
    @identity("Base", "a")
    @dataclass
    class Base:
        first: int

    @identity("More", "b")
    @dataclass
    class More(Base):
        second: int

    assert stored(More(1, 2)) == {"a": 1, "b": 2}
    assert stored([Base(1), {"x": (More(1, 2),)}]) == [{"a": 1}, {"x": ({"a": 1, "b": 2},)}]


def test_types_without_stable_names_are_not_stored(fresh: None):
    @dataclass
    class Unknown:
        size: int

    class Kind(Enum):
        ONE = 1

    for value in (Unknown(1), Kind.ONE):
        with pytest.raises(TypeError, match="no stable names"):
            name(value)
    with pytest.raises(TypeError, match="no stable names"):
        stored({"x": Unknown(1)})
    for names in (("Unknown",), ("Unknown", "a", "b"), ("Image", "a")):
        with pytest.raises(TypeError):
            identity(*names)(Unknown)
    with pytest.raises(TypeError, match="no field 'depth'"):
        restored(Image, {"h": 1, "w": 1, "c": 1, "depth": 1})
    assert restored(Image, {"h": 1, "w": 2, "c": 3}) == Image(1, 2, 3, Dtype.I8)
