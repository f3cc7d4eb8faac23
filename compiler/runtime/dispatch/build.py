"""Networks whose programs the machine chooses among, or plain ones, as the options say."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.codegen.command_stream import CommandStream
from compiler.options import CompileOptions
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.dispatch.batch_sizes import with_sizes
from compiler.runtime.dispatch.skip import with_skip


def dispatched(
    options: CompileOptions,
    build: Callable[[CompileOptions], CompiledNetwork],
    makings: Sequence[CommandStream],
) -> CompiledNetwork:
    """The network of a model.

    Parameters
    ----------
    options : Options
        How to compile.
    build : callable
        Compiles the model without choices.
    makings : sequence of Making
        What `build` makes of stages on the accelerator is there when it is done.

    Raises
    ------
    InputError
        The model cannot be compiled so.
    """
    if options.batches:
        return with_sizes(options, build)
    if options.skip is None:
        return build(options)
    network = build(replace(options, single=True, offset=0))
    return with_skip(network, options.skip, makings, options.offset)
