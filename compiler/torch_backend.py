"""Backend "mla" of `torch.compile`, which runs the graphs that PyTorch captures on the accelerator.

    compiled = torch.compile(model.eval(), backend="mla", options={"target": "n16", "calibration_calls": 8})
    with torch.no_grad():
        for image in images:
            scores = compiled(image)  # after eight calls in PyTorch: on the accelerator
    print(compiler.torch_backend.report())

An installed package registers the backend by an entry point; importing this module registers it, too. The import sets
`torch._dynamo.config.allow_rnn`, without which PyTorch leaves recurrent layers out of the graphs.
"""

import hashlib
import inspect
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.api import compile
from compiler.cache.model_source import ModelSource
from compiler.frontends.torch_module import read_module, torch_library
from compiler.lowering.partition import HostNode
from compiler.onnx_backend import MlaBackendRep
from compiler.quantize.report import QuantizationReport, summary
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import KINDS
from compiler.util import checks
from compiler.util.tables import counted
from hw.config import DEFAULT_TARGET, MlaConfig, load_target
from hw.errors import InputError, shown

torch: Any = torch_library()  # the type checker may not find torch

_log = logging.getLogger(__name__)

#: Options that are passed to `compile`, and all options.
_PASSED = ("strict", "keep_float", "rounding", "dram", "limits")
_OPTIONS = ("target", "device", "calibration_calls", *_PASSED)
#: Maximum number of combinations of input shapes for which one graph is compiled.
MAX_SHAPES = 8
#: Maximum number of graphs stored for reports, and of samples stored for calibration.
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
    unknown = ", ".join(str(name) for name in options if name not in _OPTIONS)
    if unknown:
        raise InputError(f"the backend mla has no option {unknown}; options are {', '.join(_OPTIONS)}")
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
    """Report on one captured graph: whether it runs on the accelerator, and why not.

    Parameters
    ----------
    number : int
        Number of the graph in the order in which graphs were first called.
    source : str
        File, line and function of the user's code that the graph begins with.
    operations : int
        Number of operations that PyTorch captured.
    inputs : str
        Types and shapes of the graph's inputs.
    reason : str
        Reason why the graph runs in PyTorch; empty for a graph on the accelerator.
    layers : int
        Number of layers on the accelerator; 0 for a graph in PyTorch.
    host : tuple of HostNode
        Nodes that the host computes, with the reasons.
    quantization : QuantizationReport or None
        Errors caused by quantization, measured on the calibration samples; None for a graph without float operators.
    input_warnings : dict
        Warnings about inputs of the calls so far whose values are outside of the calibrated range, by input.
    """

    number: int
    source: str
    operations: int
    inputs: str
    reason: str = ""
    layers: int = 0
    host: tuple[HostNode, ...] = ()
    quantization: QuantizationReport | None = None
    input_warnings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        size = counted(self.operations, "operation")
        head = f"graph {self.number} ({self.source}; {size}; {self.inputs}): "
        if self.reason:
            return f"{head}in PyTorch: {self.reason}"
        lines = [f"{head}{counted(self.layers, 'layer')} on the accelerator"]
        lines += [f"  runs on the host: {each.node} ({each.op}): {each.reason}" for each in self.host]
        if self.quantization is not None:
            lines += [f"  {line}" for line in summary(self.quantization.document())]
        lines += [f"  {line}" for line in self.input_warnings.values()]
        return "\n".join(lines)


@dataclass(frozen=True)
class TorchReport:
    """Graphs that `torch.compile` passed to the backend, and the graph breaks between them; printed as text.

    Parameters
    ----------
    graphs : tuple of GraphReport
        Reports of the graphs in the order of their first calls.
    breaks : tuple of str
        For each graph break, the line of the user's code and the reason that PyTorch states. What follows the break is
        another graph; the operation itself runs in Python.
    """

    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...]

    def __str__(self) -> str:
        lines = [str(each) for each in self.graphs] or ["no graph has been called"]
        lines += [f"{counted(len(self.breaks), 'graph break')}{':' if self.breaks else ''}"]
        return "\n".join([*lines, *(f"  {each}" for each in self.breaks)])


#: Reports of all graphs since the process started or `torch._dynamo.reset` was called, and the number of the next one.
_reports: deque[GraphReport] = deque(maxlen=_MAX_GRAPHS)
_numbers = count()


def report() -> TorchReport:
    """Return where the graphs compiled since the start, or since `torch._dynamo.reset`, run, and all graph breaks."""
    breaks = dict.fromkeys(_described_break(each) for each in torch._dynamo.graph_break_reasons)
    return TorchReport(tuple(_reports), tuple(breaks))


def _described_break(found: Any) -> str:
    """Return the place of a graph break and its reason in one line.

    Parameters
    ----------
    found : torch._dynamo.output_graph.GraphCompileReason
        A graph break, whose reason begins with its kind and an explanation in one line each.
    """
    lines = [line.strip() for line in found.reason.splitlines() if line.strip()] or ["unknown"]
    why = ": ".join([lines[0], *(line.removeprefix("Explanation: ") for line in lines[1:2])])
    if why.startswith("generic_jump"):
        why = "a branch depends on the value of a tensor"
    frames = [(each.filename, str(each.lineno), each.name) for each in found.user_stack]
    return f"{_place(frames)}: {why}"


def mla(
    graph: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
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
    mode : None
        Mode of PyTorch's own backend, which this backend does not have.

    Returns
    -------
    callable
        Function of the graph's inputs that returns its outputs as tensors.

    Raises
    ------
    InputError
        An option is unknown or invalid.
    """
    if mode is not None:
        raise InputError(f"the backend mla has no mode {shown(mode)}: omit it")
    return _CapturedGraph(graph, _read_options(options))


def _reset() -> None:
    """Forget the reports; `torch._dynamo.reset` calls this."""
    global _numbers
    _reports.clear()
    _numbers = count()


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
        self.shaped: dict[tuple, _ShapedGraph] = {}

    def __call__(self, *inputs: Any) -> Any:
        """Return the outputs of the graph."""
        given = [each for each, fixed in zip(inputs, self.fixed, strict=True) if not fixed]
        key = tuple((each.shape, each.dtype) if isinstance(each, torch.Tensor) else each for each in given)
        if key not in self.shaped and len(self.shaped) >= MAX_SHAPES:
            key = ()  # all further shapes
        if key not in self.shaped:
            shaped = self.shaped[key] = _ShapedGraph(self, given)
            if not key and given:
                shaped.keep_in_torch(f"its inputs have more than {MAX_SHAPES} combinations of shapes")
        return self.shaped[key](inputs, [each for each in given if isinstance(each, torch.Tensor)])


class _ShapedGraph:
    """Captured graph for inputs of certain shapes: recorded for calibration, then compiled, or left in PyTorch."""

    def __init__(self, captured: _CapturedGraph, given: Sequence[Any]):
        self.captured, self.options = captured, captured.options
        nodes = list(captured.graph.graph.nodes)
        described = ", ".join(_described(each) for each in given if isinstance(each, torch.Tensor))
        self.report = GraphReport(
            next(_numbers),
            _source_of(nodes),
            sum(node.op.startswith("call_") for node in nodes),
            described or "no inputs",
        )
        if self.options.calls:
            self.report.reason = f"its first {counted(self.options.calls, 'call')} are for calibration"
        _reports.append(self.report)
        self.stays_in_torch = False
        self.samples: list[list[NDArray]] = []
        self.runner: MlaBackendRep | None = None
        self.weights = b""

    def keep_in_torch(self, reason: str) -> None:
        """Run the graph in PyTorch from now on.

        Raises
        ------
        InputError
            The option `strict` is set.
        """
        title = f"graph {self.report.number} ({self.report.source})"
        self.report.reason, self.stays_in_torch, self.samples = reason, True, []
        if self.options.passed.get("strict"):
            raise InputError(f"{title}: {reason}")
        _log.warning("%s runs in PyTorch: %s", title, reason)

    def __call__(self, inputs: Sequence[Any], tensors: Sequence[Any]) -> Any:
        """Return the outputs of the graph.

        Parameters
        ----------
        inputs : sequence of tensors and integers
            All inputs of the graph.
        tensors : sequence of tensors
            The inputs that are neither parameters, buffers nor integers.
        """
        reason = "" if self.stays_in_torch else _obstacle(inputs)
        if reason:
            self.keep_in_torch(reason)
        if self.stays_in_torch:
            return self.captured.graph(*inputs)
        arrays = [_array(each) for each in tensors]
        if self.runner is None and len(self.samples) < self.options.calls:
            self.samples.append([array.copy() for array in arrays])
            return self.captured.graph(*inputs)
        weights = _digest(each for each, fixed in zip(inputs, self.captured.fixed, strict=True) if fixed)
        if self.runner is None or weights != self.weights:
            self.runner, self.weights = self._compiled(inputs, self.samples or [arrays]), weights
        if self.runner is None:
            return self.captured.graph(*inputs)
        return tuple(torch.from_numpy(np.array(array)) for array in self.runner.run(arrays))

    def _compiled(self, inputs: Sequence[Any], samples: list[list[NDArray]]) -> MlaBackendRep | None:
        """Compile the graph with the present values of its parameters; return None if it stays in PyTorch."""
        title = f"graph {self.report.number}"
        if self.runner is not None:
            _log.warning("graph %d is compiled again: its parameters have changed", self.report.number)
            self.runner.close()
        try:
            with torch.inference_mode(False):
                module = _specialized(self.captured, inputs)
                example = tuple(torch.from_numpy(array.copy()) for array in samples[0])
                source = ModelSource(read_module(module, example, name=title))
                network = compile(
                    source,
                    self.options.config,
                    calibration=self._calibration(source, samples),
                    cache=False,
                    **self.options.passed,
                )
        except InputError as error:
            self.keep_in_torch(str(error).removeprefix(f"{title}: "))
            return None
        if not network.infos:
            whys = "; ".join(
                f"{each.node} ({each.op}): {each.reason}" for each in network.host if not each.edge
            )
            self.keep_in_torch(f"no operator of it runs on the accelerator{whys and ': '}{whys}")
            return None
        self._describe(network)
        return MlaBackendRep(network, self.options.device)

    def _calibration(
        self, source: ModelSource, samples: list[list[NDArray]]
    ) -> list[dict[str, NDArray]] | None:
        """Return the calibration samples by input name; None for a model that needs no quantization."""
        if not source.floating:
            return None
        if not self.samples:
            _log.warning(
                "graph %d (%s) is quantized with the inputs of its first call only: call the model with "
                "representative inputs first, and state their number as options={'calibration_calls': N}",
                self.report.number,
                self.report.source,
            )
        return [dict(zip(source.graph.inputs, sample, strict=True)) for sample in samples]

    def _describe(self, network: CompiledNetwork) -> None:
        """Complete the report of the compiled graph."""
        self.report.reason, self.report.layers = "", len(network.infos)
        self.report.host = tuple(each for each in network.host if not each.edge)
        self.report.quantization, self.report.input_warnings = network.quantization, network.monitor.warnings


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
        if each.dtype not in _TYPES:
            return f"it has a tensor of type {each.dtype}; convert the model and its inputs to float32"
    return ""


#: Types of tensors that the compiler reads.
_TYPES = (
    *(torch.float32, torch.float16, torch.bool),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
)


def _array(tensor: Any) -> NDArray:
    """Return the contents of a tensor on the CPU as an array."""
    return np.ascontiguousarray(tensor.detach().numpy()).reshape(tuple(tensor.shape))


def _digest(tensors: Iterable[Any]) -> bytes:
    """Return a digest of the contents of tensors."""
    digest = hashlib.blake2b()
    for tensor in tensors:
        digest.update(_array(tensor).reshape(-1).view(np.uint8).data)
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
    graph.output(graph.graph_copy(captured.graph.graph, {}))
    module = fx.GraphModule(captured.graph, graph)
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value, fixed in zip(nodes, inputs, captured.fixed, strict=True):
        if fixed:
            name = f"{node.name.rstrip('_')}_value"
            module.register_buffer(name, value.detach())
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(name))
        elif isinstance(value, torch.Tensor):
            continue
        else:
            for user in list(node.users):
                user.args, user.kwargs = (_replaced(part, node, value) for part in (user.args, user.kwargs))
        graph.erase_node(node)
    for node in graph.nodes:
        _separate(node)
        # The paths of submodules become the names of nodes.
        scopes = node.meta.get("nn_module_stack") or {}
        node.meta["nn_module_stack"] = {
            key: (_ROOT.sub("", path), kind) for key, (path, kind) in scopes.items()
        }
    module.recompile()
    return module


def _attention(
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    mask: None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: None = None,
) -> tuple[Any, Any]:
    """Compute the result of PyTorch's fused operator for multi-head attention with separate operators."""
    operands = (each.transpose(0, 1) for each in (query, key, value))
    out, weights = torch.nn.functional.multi_head_attention_forward(
        *operands,
        width,
        heads,
        qkv_weight,
        qkv_bias,
        None,
        None,
        False,
        0.0,
        out_weight,
        out_bias,
        training=False,
        need_weights=need_weights,
        average_attn_weights=average_weights,
    )
    return out.transpose(0, 1), weights


def _encoder_layer(
    x: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    gelu: bool,
    norm_first: bool,
    eps: float,
    scale_1: Any,
    shift_1: Any,
    scale_2: Any,
    shift_2: Any,
    weight_1: Any,
    bias_1: Any,
    weight_2: Any,
    bias_2: Any,
    mask: None = None,
    mask_type: None = None,
) -> Any:
    """Compute the result of PyTorch's fused operator for an encoder layer with separate operators."""
    functional = torch.nn.functional

    def attend(y: Any) -> Any:
        return _attention(
            y, y, y, width, heads, qkv_weight, qkv_bias, out_weight, out_bias, need_weights=False
        )[0]

    def feed_forward(y: Any) -> Any:
        y = functional.linear(y, weight_1, bias_1)
        return functional.linear(functional.gelu(y) if gelu else functional.relu(y), weight_2, bias_2)

    def norm_1(y: Any) -> Any:
        return functional.layer_norm(y, (width,), scale_1, shift_1, eps)

    def norm_2(y: Any) -> Any:
        return functional.layer_norm(y, (width,), scale_2, shift_2, eps)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + feed_forward(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed_forward(x))


#: Functions that replace the fused operators that PyTorch's modules call without gradients; same arguments.
_FUSED: dict[Any, Callable[..., Any]] = {
    torch._native_multi_head_attention: _attention,
    torch._transformer_encoder_layer_fwd: _encoder_layer,
}


def _separate(node: Any) -> None:
    """Replace a node that calls a fused operator by separate operators; other nodes are unchanged.

    Raises
    ------
    InputError
        The fused operator has a mask, whose meaning depends on the type of the mask.
    """
    function = _FUSED.get(node.target) if node.op == "call_function" else None
    if function is None:
        return
    if inspect.signature(function).bind(*node.args, **node.kwargs).arguments.get("mask") is not None:
        raise InputError(
            f"{node.target.__name__} has a mask: torch.backends.mha.set_fastpath_enabled(False) makes PyTorch capture "
            "its parts"
        )
    node.target = function


def _replaced(arguments: Any, node: Any, value: int) -> Any:
    """Return the arguments of an operation with a node replaced by a number."""
    return torch.fx.node.map_arg(arguments, lambda each: value if each is node else each)


#: Local variable of the user's function in the path of a submodule, such as L['self'].layer1.
_ROOT = re.compile(r"^L\['\w+'\]\.?")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _source_of(nodes: Sequence[Any]) -> str:
    """Return file, line and function of the user's code that the first operation of a graph comes from."""
    traces = (node.meta.get("stack_trace") or node.stack_trace or "" for node in nodes)
    places = (_place(frames) for trace in traces if (frames := _FRAME.findall(trace)))
    calls = (f"from {node.name}" for node in nodes if node.op.startswith("call_"))
    return next(places, next(calls, "without operations"))


def _place(frames: Sequence[tuple[str, str, str]]) -> str:
    """Return file, line and function of the innermost frame, if possible one outside of PyTorch."""
    library = str(Path(torch.__file__).parent)
    own = [frame for frame in frames if not frame[0].startswith(library)] or list(frames)
    if not own:
        return "unknown line"
    path, line, function = own[-1]
    return f"{Path(path).name}:{line} in {_RESUMED.sub('', function)}"


#: Prefix and suffix of the names of functions that continue after a graph break.
_RESUMED = re.compile(r"^torch_dynamo_resume_in_|_at_\d+$")


def _register() -> None:
    """Register the backend, unless the installed package does so, and let PyTorch capture recurrent layers."""
    torch._dynamo.config.allow_rnn = True
    if "mla" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(mla, name="mla")


_register()
