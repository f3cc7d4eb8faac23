"""Compare two targets for one model: memory, programs, roofline and, with `rtl`, measured cycles.

    python examples/compare_targets.py network.tflite n4 n8 [rtl]

`mla explore` prints a more detailed table; this script shows how the values in that table are obtained.
"""

import sys

import numpy as np

import compiler


def main(model: str, first: str, second: str, kind: str = "golden") -> None:
    """Print a line for each target, and whether both targets compute equal outputs."""
    results = []
    for target in (first, second):
        network = compiler.compile(model, target)
        rng = np.random.default_rng(0)
        sample = {each.name: rng.integers(0, 17, each.shape).astype(each.dtype) for each in network.inputs}
        with compiler.open_device(network, kind) as device:
            outputs, cycles = compiler.Session(device, network).measure(sample)
        results.append(outputs)

        roofline = network.floor.cycles(network.config)
        words = sum(len(program.words) for code in network.codes for program in code.all_programs)
        dram = sum(code.memory for code in network.codes)
        measured = f", {cycles:,} measured" if kind == "rtl" else ""
        print(
            f"{target}: {roofline:,} cycles at least{measured}; {words:,} program words; {dram:,} bytes of DRAM"
        )

    same = all(np.array_equal(results[0][name], results[1][name]) for name in results[0])
    print("outputs are", "equal" if same else "different")


if __name__ == "__main__":
    main(*sys.argv[1:])
