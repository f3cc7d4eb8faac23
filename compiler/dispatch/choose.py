"""Networks whose programs the machine chooses among, or plain ones, as the options say."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.codegen.making import Making
from compiler.dispatch.sizes import with_sizes
from compiler.dispatch.skip import with_skip
from compiler.network import Network
from compiler.options import Options


def dispatched(options: Options, build: Callable[[Options], Network], makings: Sequence[Making]) -> Network:
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
