"""One-sentence descriptions of the cycle causes."""

#: By cause, in the order of `hw.isa.counters.CAUSES`.
MEANINGS = {
    "useful": "a row of activations enters the array.",
    "fill_drain": "the array fills or empties: rows are still on their way through it.",
    "weight_shift": "the weights of the next tile are shifted into the array.",
    "wait_weights": "the next tile's weights could not be read: the scratchpad served another unit.",
    "wait_activations": "the activations could not be read from the scratchpad.",
    "wait_accumulator": "the accumulator could not take the sums.",
    "wait_fuse": "the array waits for FUSE, which requantizes, adds, pools or looks up, or FUSE works alone.",
    "wait_bus": "the array waits for LOAD or STORE, that is for data to or from DRAM, or these work alone.",
    "wait_sequencer": "the array waits for the program to issue its next command.",
    "idle": "nothing was left to do: no macro-instruction was under way.",
}
