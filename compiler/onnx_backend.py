"""Implementation of ONNX's backend interface, `onnx.backend.base.Backend`, for its test suite and other tools.

    from compiler import onnx_backend

    with onnx_backend.prepare(model, "MLA:n16") as network:
        (scores,) = network.run([image])

A device is "MLA" or "MLA:TARGET" for the golden model, or "MLA:TARGET:rtl" for the simulated chip; TARGET is an
argument of `hw.config.load_target`. "CPU" is ONNX's name for the default device, "MLA:n16".
"""

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep, namedtupledict
from onnx.defs import onnx_opset_version

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.frontends.onnx.file import from_bytes
from compiler.frontends.onnx.node import check_operator, one_node
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from compiler.runtime.session import Session
from compiler.util import checks
from hw.config import DEFAULT_TARGET, MlaConfig, load_target
from hw.errors import InputError, shown

#: Device selected by the name "CPU".
DEFAULT = f"MLA:{DEFAULT_TARGET}"
_KINDS = ("golden", "rtl")
_LATENCY = 100
#: Keyword arguments of `prepare`, which are those of `compile`.
_OPTIONS = tuple(compile.__kwdefaults__ or ())

Model = ModelProto | bytes | str | Path
Inputs = Mapping[str, ArrayLike] | Sequence[ArrayLike] | NDArray


class _DeviceSpec(NamedTuple):
    """Hardware configuration and kind of a device, parsed from its name."""

    config: MlaConfig
    kind: str


def _parse_device(device: str) -> _DeviceSpec:
    """Parse the name of a device; raise InputError if it is invalid."""
    checks.of_type("device", device, str, "MLA, MLA:TARGET, MLA:TARGET:rtl or CPU")
    family, _, rest = (DEFAULT if device == "CPU" else device).partition(":")
    target, _, kind = rest.rpartition(":")
    if kind not in _KINDS:
        target, kind = rest, "golden"
    if family != "MLA":
        raise InputError(f"device must be MLA, MLA:TARGET, MLA:TARGET:rtl or CPU, not {shown(device)}")
    return _DeviceSpec(load_target(target or DEFAULT_TARGET), kind)


class MlaBackendRep(BackendRep):
    """Compiled model that is ready to run.

    The first run opens the device; `close`, or leaving a `with` block, closes it.

    Parameters
    ----------
    network : CompiledNetwork
        The compiled model.
    kind : str
        Device to run on: "golden" or "rtl".

    Attributes
    ----------
    network : CompiledNetwork
        The compiled model; its attribute `host` lists the nodes that run on the host, each with the reason.
    """

    def __init__(self, network: CompiledNetwork, kind: str = "golden"):
        self.network = network
        self._kind = kind
        self._stack = ExitStack()
        self._session: Session | None = None
        self._answer = namedtupledict("Outputs", [tensor.name for tensor in network.outputs])
        weakref.finalize(self, self._stack.close)

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[NDArray, ...]:
        """Run one sample and return the outputs in the model's order as a named tuple, which can be indexed by name.

        Parameters
        ----------
        inputs : list, dict or array
            Inputs in the model's order or by name, or a single array for a model with one input.

        Raises
        ------
        InputError
            The number, shapes or types of the inputs do not match the model.
        """
        if kwargs:
            raise InputError(f"run takes no {', '.join(kwargs)}")
        outputs = self._opened().run(self._named(inputs))
        return self._answer(*(outputs[tensor.name] for tensor in self.network.outputs))

    def close(self) -> None:
        """Close the device; the next run opens it again."""
        self._session = None
        self._stack.close()

    def __enter__(self) -> "MlaBackendRep":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self) -> Session:
        if self._session is None:
            rate = self.network.config.n
            device = open_device(self.network, self._kind, 1, _LATENCY, rate, lambda text: None)
            self._session = Session(self._stack.enter_context(device), self.network)
        return self._session

    def _named(self, inputs: Inputs) -> dict[str, NDArray]:
        given = checks.inputs(inputs)
        if isinstance(given, Mapping):
            return checks.arrays("input", given)
        names = [tensor.name for tensor in self.network.inputs]
        if len(given) != len(names):
            raise InputError(f"the model has {len(names)} inputs ({', '.join(names)}), not {len(given)}")
        return {
            name: checks.array(f"input {name!r}", value) for name, value in zip(names, given, strict=True)
        }


class MlaBackend(Backend):
    """ONNX backend that runs models on the accelerator."""

    @classmethod
    def is_compatible(cls, model: Model, device: str = "CPU", **kwargs: Any) -> bool:
        """Return True if a model can be compiled for the device."""
        try:
            cls.prepare(model, device, **kwargs)
        except InputError:
            return False
        return True

    @classmethod
    def is_opset_supported(cls, model: ModelProto) -> tuple[bool, str]:
        """Return True and "" if the installed onnx supports the model's operator set, else False and a reason."""
        newest = onnx_opset_version()
        for each in checks.of_type("model", model, ModelProto, "a ModelProto").opset_import:
            if each.domain in ("", "ai.onnx") and each.version > newest:
                return False, f"operator set {each.version} is newer than {newest}"
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if a device name is valid."""
        try:
            return bool(_parse_device(device))
        except InputError:
            return False

    @classmethod
    def prepare(cls, model: Model, device: str = "CPU", **kwargs: Any) -> MlaBackendRep:
        """Compile a model.

        Parameters
        ----------
        model : ModelProto, bytes or path
            Model to compile; a model in memory cannot have external data.
        device : str
            Name of the device to run on, such as "MLA:n16:rtl".
        sizes : dict, optional
            Sizes of symbolic dimensions of the model.
        **kwargs
            Further arguments of `compiler.compile`, such as `calibration` for float models, `rounding`, `strict`,
            `seed` and `schedule`.

        Raises
        ------
        InputError
            The device does not exist, or the model cannot be read or compiled.
        """
        config, kind = _parse_device(device)
        checks.known(prepare, _OPTIONS, kwargs)
        sizes, lengths = checks.sizes(kwargs.pop("sizes", None))
        if lengths is not None:
            raise InputError(f"sizes: the backend takes one size of {lengths[0]!r}, not {len(lengths[1])}")
        checks.of_type("model", model, (ModelProto, bytes, str, Path), "a ModelProto, its bytes, or a path")
        if isinstance(model, bytes):
            model = from_bytes(model)
        graph = read_onnx(Path(model) if isinstance(model, str) else model, sizes)
        return MlaBackendRep(compile(graph, config, **{"rounding": "onnxruntime", **kwargs}), kind)

    @classmethod
    def run_model(
        cls, model: Model, inputs: Inputs, device: str = "CPU", **kwargs: Any
    ) -> tuple[NDArray, ...]:
        """Compile a model and run one sample; raise the errors of `prepare` and `MlaBackendRep.run`."""
        with cls.prepare(model, device, **kwargs) as backend_rep:
            return backend_rep.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Inputs,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[NDArray, ...]:
        """Run a single operator.

        All inputs except the first become constants, as weights, axes and limits are in a network. A float operator
        is quantized with the given inputs as calibration data.

        Parameters
        ----------
        opset_version : int, optional
            Operator set version of the operator; default: the newest.
        """
        opset = checks.integer("opset_version", kwargs.pop("opset_version", onnx_opset_version()), 1)
        checks.of_type("node", node, NodeProto, "a NodeProto")
        check_operator(node, opset)
        names = list(dict.fromkeys(name for name in node.input if name))
        given = checks.inputs(inputs)
        if isinstance(given, Mapping):
            given = [given[name] for name in names if name in given]
        if len(given) != len(names):
            title = shown(node.name or node.op_type)
            raise InputError(f"node {title} has {len(names)} inputs, not {len(given)}")
        arrays = {
            name: checks.array(f"input {name!r}", value) for name, value in zip(names, given, strict=True)
        }
        model = one_node(node, arrays, names[:1], opset, outputs_info)
        sample = {name: arrays[name] for name in names[:1]}
        if all(array.dtype == "float32" and np.isfinite(array).all() for array in sample.values()):
            kwargs.setdefault("calibration", [sample])
        return cls.run_model(model, sample, device, **kwargs)


prepare = MlaBackend.prepare
run_model = MlaBackend.run_model
run_node = MlaBackend.run_node
supports_device = MlaBackend.supports_device
is_compatible = MlaBackend.is_compatible
