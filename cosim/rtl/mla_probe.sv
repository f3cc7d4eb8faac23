// Reports the start and the end of commands and programs, and each beat on the bus, to probe.cpp.
module mla_probe (
    input logic clk,
    input logic [3:0] started,
    input logic [3:0] retired,
    input logic [23:0] tags,
    input logic entered,
    input logic [5:0] entered_tag,
    input logic halted,
    input logic read,
    input logic written
);
    import "DPI-C" function void mla_probe_step(input int unsigned pulses, input int unsigned tags);

    wire [11:0] pulses = {written, read, halted, entered, retired, started};
    always_ff @(posedge clk) if (|pulses) mla_probe_step({20'b0, pulses}, {2'b0, entered_tag, tags});
endmodule
