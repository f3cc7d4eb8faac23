"""Backend "mla" of `torch.compile`, which runs the graphs that PyTorch captures on the accelerator.

    compiled = torch.compile(model.eval(), backend="mla", options={"target": "n16", "calibration_calls": 8})
    with torch.no_grad():
        for image in images:
            scores = compiled(image)  # after eight calls in PyTorch: on the accelerator
    print(compiler.torch_backend.report())

An installed package registers the backend by an entry point; importing this module registers it, too. Importing it
makes PyTorch capture recurrent layers (`torch._dynamo.config.allow_rnn`), which it otherwise leaves out of the graphs.
"""

import hashlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.api import compile
from compiler.cache.model_source import ModelSource
from compiler.frontends.torch_module import read_module, torch_library
from compiler.lowering.partition import HostNode
from compiler.onnx_backend import MlaBackendRep
from compiler.quantize.report import quality_warnings, summary
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import KINDS
from compiler.util import checks
from compiler.util.tables import counted
from hw.config import DEFAULT_TARGET, MlaConfig, load_target
from hw.errors import InputError, shown

torch: Any = torch_library()  # the type checker may not find torch

_log = logging.getLogger(__name__)

#: Arguments of `compile` that the backend determines itself; the others are options.
_DETERMINED = frozenset(
    "schedule calibration example dynamic_shapes sizes bind seed offset batch batches skip cache record".split()
)
_PASSED = tuple(name for name in compile.__kwdefaults__ or () if name not in _DETERMINED)
_OPTIONS = ("target", "device", "calibration_calls", *_PASSED)
#: Maximum number of networks that one graph of variable shapes is compiled to.
MAX_SHAPES = 8
#: Maximum number of graphs and of samples that are kept for reports and for calibration.
_MAX_GRAPHS, _MAX_CALLS = 1000, 1024


class _Options(NamedTuple):
    """Options of `torch.compile` for this backend, as described under `mla`."""

    config: MlaConfig
    device: str
    calls: int
    passed: dict[str, Any]


def _read_options(given: Any) -> _Options:
    """Check the options of `torch.compile`; raise InputError if an option is unknown or invalid."""
    options = dict(checks.of_type("options", given or {}, Mapping, "a dict"))
    checks.known(torch.compile, _OPTIONS, options)
    target, device = options.pop("target", DEFAULT_TARGET), options.pop("device", "golden")
    config = load_target(target) if isinstance(target, str) else target
    checks.of_type("target", config, MlaConfig, "the name of a target, a TOML file, or an MlaConfig")
    if device not in KINDS:
        raise InputError(f"device must be {' or '.join(KINDS)}, not {shown(device)}")
    calls = checks.integer("calibration_calls", options.pop("calibration_calls", 0), 0)
    if calls > _MAX_CALLS:
        raise InputError(f"calibration_calls must be at most {_MAX_CALLS}, not {calls}")
    return _Options(config, device, calls, {"rounding": "onnxruntime", **options})


@dataclass
class GraphReport:
    """Where one captured graph runs, and why.

    Parameters
    ----------
    number : int
        Number of the graph in the order in which graphs were first called.
    source : str
        File, line and function of the user's code that the graph begins with.
    operations : int
        Number of operations that PyTorch captured.
    shapes : str
        Types and shapes of the inputs.
    layers : int
        Number of layers on the accelerator; 0 for a graph in PyTorch.
    reason : str
        Reason why the graph runs in PyTorch; empty for a graph on the accelerator.
    host : tuple of HostNode
        Nodes that the host computes, with the reasons.
    quality : list of str
        Errors caused by quantization, measured on the calibration samples.
    """

    number: int
    source: str
    operations: int
    shapes: str
    layers: int = 0
    reason: str = ""
    host: tuple[HostNode, ...] = ()
    quality: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = f"graph {self.number} ({self.source}; {counted(self.operations, 'operation')}; {self.shapes}): "
        if self.reason:
            return f"{head}in PyTorch: {self.reason}"
        lines = [f"{head}{counted(self.layers, 'layer')} on the accelerator"]
        lines += [f"  runs on the host: {each.node} ({each.op}): {each.reason}" for each in self.host]
        return "\n".join([*lines, *(f"  {line}" for line in self.quality)])


@dataclass(frozen=True)
class TorchReport:
    """Graphs that `torch.compile` handed to the backend, and the graph breaks between them; printed as text.

    Parameters
    ----------
    graphs : tuple of GraphReport
        Reports of the graphs in the order of their first calls.
    breaks : dict
        Number of graph breaks by reason, as PyTorch counts them. Operations at a graph break run in Python.
    """

    graphs: tuple[GraphReport, ...]
    breaks: Mapping[str, int]

    def __str__(self) -> str:
        lines = [str(each) for each in self.graphs] or ["no graph has been called"]
        lines.append(f"{counted(sum(self.breaks.values()), 'graph break')} (code that runs in Python)")
        lines += [f"  {why}{f' ({count} times)' if count > 1 else ''}" for why, count in self.breaks.items()]
        return "\n".join(lines)


#: Reports of all graphs since the process started or `torch._dynamo.reset` was called.
_reports: deque[GraphReport] = deque(maxlen=_MAX_GRAPHS)


def report() -> TorchReport:
    """Return where the graphs compiled since the start, or since `torch._dynamo.reset`, run, and all graph breaks."""
    breaks: dict[str, int] = {}
    for text, count in torch._dynamo.utils.counters["graph_break"].items():
        line = _break_reason(str(text))
        breaks[line] = breaks.get(line, 0) + count
    return TorchReport(tuple(_reports), breaks)


def _break_reason(text: str) -> str:
    """Return the reason of a graph break in one line: its kind, its explanation and what caused it."""
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    found = [
        line.removeprefix("Developer debug context: ").removeprefix("Explanation: ")
        for line in kept
        if not line.startswith(("Hint:", "For more details", "from user code", "*"))
    ]
    return ": ".join(found[:3]) if found else "unknown"


def mla(graph: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Compile a graph that `torch.compile` has captured.

    The graph is compiled when it is called: from the inputs of that call or, with `calibration_calls`, of earlier
    calls. A graph that cannot be compiled runs in PyTorch with a warning that states the reason.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The captured graph, whose parameters and buffers are inputs.
    inputs : sequence of tensors and integers
        Example inputs; only the actual inputs of a call are used.
    options : dict, optional
        `target` (str or MlaConfig): hardware configuration to compile for. `device` ("golden" or "rtl"): device to run
        on. `calibration_calls` (int): number of first calls that run in PyTorch and whose inputs become the calibration
        samples; 0 calibrates with the inputs of the first call, with a warning. `strict` (bool): raise an error for
        operators on the host and for graphs that cannot be compiled. `keep_float`, `rounding`, `dram`, `limits`: as for
        `compiler.compile`.

    Returns
    -------
    callable
        Function of the graph's inputs that returns its outputs as tensors.

    Raises
    ------
    InputError
        An option is unknown or invalid.
    """
    return _CapturedGraph(graph, _read_options(options))


def _reset() -> None:
    """Forget the reports; `torch._dynamo.reset` calls this."""
    _reports.clear()


mla.reset = _reset  # type: ignore[attr-defined]


class _CapturedGraph:
    """Graph that `torch.compile` calls, with one network per combination of input shapes."""

    def __init__(self, graph: Any, options: _Options):
        self.graph, self.options = graph, options
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        #: For each input, True for a parameter or a buffer of the model.
        self.fixed = [
            bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")) for node in nodes
        ]
        self.networks: dict[tuple, _ShapedGraph] = {}

    def __call__(self, *inputs: Any) -> Any:
        """Return the outputs of the graph."""
        key = tuple(
            (each.shape, each.dtype) if isinstance(each, torch.Tensor) else each
            for each, fixed in zip(inputs, self.fixed, strict=True)
            if not fixed
        )
        if key not in self.networks:
            self.networks[key] = _ShapedGraph(self, inputs)
            if len(self.networks) > MAX_SHAPES:
                self.networks[key].keep_in_torch(
                    f"its inputs have more than {MAX_SHAPES} combinations of shapes"
                )
        return self.networks[key](inputs)


class _ShapedGraph:
    """Captured graph for inputs of certain shapes: recorded for calibration, then compiled, or left in PyTorch."""

    def __init__(self, captured: _CapturedGraph, inputs: Sequence[Any]):
        self.captured, self.options = captured, captured.options
        nodes = list(captured.graph.graph.nodes)
        self.report = GraphReport(
            len(_reports),
            _source_of(nodes),
            sum(node.op.startswith("call_") for node in nodes),
            ", ".join(_described(each) for each in self._given(inputs)) or "no inputs",
        )
        _reports.append(self.report)
        self.samples: list[list[NDArray]] = []
        self.runner: MlaBackendRep | None = None
        self.weights = b""
        if self.options.calls:
            self.report.reason = f"the first {counted(self.options.calls, 'call')} are calibration"

    def _given(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs that are neither parameters nor buffers."""
        return [each for each, fixed in zip(inputs, self.captured.fixed, strict=True) if not fixed]

    def keep_in_torch(self, reason: str) -> None:
        """Run the graph in PyTorch from now on.

        Raises
        ------
        InputError
            The option `strict` is set.
        """
        if self.options.passed.get("strict"):
            raise InputError(f"graph {self.report.number} ({self.report.source}): {reason}")
        _log.warning(
            "graph %d (%s) runs in PyTorch: %s", self.report.number, self.report.source, reason
        )
        self.report.reason, self.final = reason, True
        self.samples = []

    #: True if the graph stays in PyTorch.
    final = False

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs of the graph for inputs of these shapes."""
        if not self.final:
            reason = _obstacle(inputs)
            if reason:
                self.keep_in_torch(reason)
        if self.final:
            return self.captured.graph(*inputs)
        arrays = [_array(each) for each in self._given(inputs) if isinstance(each, torch.Tensor)]
        if self.runner is None and len(self.samples) < self.options.calls:
            self.samples.append(arrays)
            return self.captured.graph(*inputs)
        weights = _digest(each for each, fixed in zip(inputs, self.captured.fixed, strict=True) if fixed)
        if self.runner is None or weights != self.weights:
            self._compile(inputs, self.samples or [arrays])
            self.weights = weights
        if self.runner is None:
            return self.captured.graph(*inputs)
        return tuple(torch.from_numpy(np.array(array)) for array in self.runner.run(arrays))

    def _compile(self, inputs: Sequence[Any], samples: list[list[NDArray]]) -> None:
        """Compile the graph with the values that its parameters and buffers now have."""
        if self.runner is not None:
            _log.warning("graph %d is compiled again: its parameters have changed", self.report.number)
        self.runner = None
        title = f"graph {self.report.number}"
        try:
            with torch.inference_mode(False):
                program = _specialized(self.captured, inputs)
                example = tuple(torch.from_numpy(np.array(array)) for array in samples[0])
                source = ModelSource(read_module(program, example, name=title))
                network = compile(source, self.options.config, calibration=self._calibration(source, samples),
                                  cache=False, **self.options.passed)
        except InputError as error:
            self.keep_in_torch(str(error).removeprefix(f"{title}: "))
            return
        if not network.infos:
            why = "; ".join(f"{each.node} ({each.op}): {each.reason}" for each in network.host if not each.edge)
            self.keep_in_torch(f"no operator of it runs on the accelerator{why and f': {why}'}")
            return
        self.runner = MlaBackendRep(network, self.options.device)
        self._describe(network)

    def _calibration(self, source: ModelSource, samples: list[list[NDArray]]) -> list[dict[str, NDArray]] | None:
        """Return the calibration samples by input name; None for a model that is not quantized here."""
        if not source.floating:
            return None
        if not self.samples:
            _log.warning(
                "graph %d (%s) is quantized with the inputs of its first call only: give representative inputs in "
                "the first calls and their number as options={'calibration_calls': N}",
                self.report.number,
                self.report.source,
            )
        return [dict(zip(source.graph.inputs, sample, strict=True)) for sample in samples]

    def _describe(self, network: CompiledNetwork) -> None:
        """Complete the report of the compiled graph, and warn about low quality."""
        self.report.reason, self.report.layers = "", len(network.infos)
        self.report.host = tuple(each for each in network.host if not each.edge)
        if network.quantization is None:
            return
        document = network.quantization.document()
        self.report.quality = summary(document)
        for line in quality_warnings(document):
            _log.warning("graph %d: %s", self.report.number, line)


def _obstacle(inputs: Sequence[Any]) -> str:
    """Return why a call cannot run on the accelerator, and what to change; an empty string if it can."""
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    devices = sorted({str(each.device) for each in tensors} - {"cpu"})
    if devices:
        return f"it has tensors on {', '.join(devices)}; move the model and its inputs to the CPU"
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return "gradients are recorded; call the model within torch.no_grad() or torch.inference_mode()"
    if torch.is_autocast_enabled("cpu"):
        return "autocast computes it in another type; call the model outside of torch.autocast"
    for each in tensors:
        if each.layout is not torch.strided:
            return f"it has a tensor of layout {each.layout}; only dense tensors are supported"
        try:
            each.detach().numpy()
        except (TypeError, RuntimeError):
            return f"it has a tensor of type {each.dtype}; convert the model and its inputs to float32"
    return ""


def _array(tensor: Any) -> NDArray:
    """Return the contents of a tensor on the CPU as an array."""
    return np.ascontiguousarray(tensor.detach().numpy()).reshape(tuple(tensor.shape))


def _digest(tensors: Iterable[Any]) -> bytes:
    """Return a digest of the contents of tensors."""
    digest = hashlib.blake2b()
    for tensor in tensors:
        digest.update(memoryview(_array(tensor).reshape(-1).view(np.uint8)))
    return digest.digest()


def _described(value: Any) -> str:
    """Return the type and shape of an input, or an integer, as text."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _specialized(captured: _CapturedGraph, inputs: Sequence[Any]) -> Any:
    """Return the graph as a module whose parameters and buffers are constants, as are inputs that are integers."""
    fx = torch.fx
    graph = fx.Graph()
    copies: dict[Any, Any] = {}
    graph.output(graph.graph_copy(captured.graph.graph, copies))
    module = fx.GraphModule(captured.graph, graph)
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    for number, (node, value, fixed) in enumerate(zip(nodes, inputs, captured.fixed, strict=True)):
        if isinstance(value, torch.Tensor) and not fixed:
            continue
        if fixed:
            name = f"constant_{number}"
            module.register_buffer(name, value.detach())
            with graph.inserting_before(node):
                constant = graph.get_attr(name)
            constant.meta = dict(node.meta)
            node.replace_all_uses_with(constant)
        else:
            for user in list(node.users):
                user.args, user.kwargs = (
                    fx.node.map_arg(part, lambda each, old=node, new=value: new if each is old else each)
                    for part in (user.args, user.kwargs)
                )
        graph.erase_node(node)
    module.recompile()
    return module


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _source_of(nodes: Sequence[Any]) -> str:
    """Return file, line and function of the first operation of a graph, outside of PyTorch if possible."""
    library = str(Path(torch.__file__).parent)
    for node in nodes:
        frames = _FRAME.findall(node.meta.get("stack_trace") or node.stack_trace or "")
        if frames:
            own = [frame for frame in frames if not frame[0].startswith(library)]
            path, line, function = (own or frames)[-1]
            return f"{Path(path).name}:{line} in {function}"
    return "unknown source"


def _register() -> None:
    """Register the backend unless an entry point of the installed package does so, and let it see recurrent layers."""
    torch._dynamo.config.allow_rnn = True
    if "mla" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(mla, name="mla")


_register()
