// Yardstick of simulation speed, frozen: a plain 16x16 weight-stationary int8 systolic array.
//
// Activations enter at the left and move right, partial sums (int32) move down, weights shift down through one shadow
// register each while `load` is high, and `swap` makes them live, moving right with the activations. The processing
// element is what Amaranth 0.5 prints for this arithmetic, so that a ratio to the chip compares designs, not the
// style of their Verilog: written by hand with `if (rst)` inside the clocked blocks, the same array simulates up to
// twice as fast.
module bare_pe (clk, rst, load, swap, w_in, a_in, p_in, swap_out, w_out, a_out, p_out);
  wire [32:0] \$1 ;
  reg [7:0] \$2 ;
  reg [31:0] \$3 ;
  reg \$4 ;
  reg [7:0] \$5 ;
  reg [7:0] \$6 ;
  input [7:0] a_in;
  wire [7:0] a_in;
  output [7:0] a_out;
  reg [7:0] a_out = 8'h00;
  input clk;
  wire clk;
  input load;
  wire load;
  input [31:0] p_in;
  wire [31:0] p_in;
  output [31:0] p_out;
  reg [31:0] p_out = 32'd0;
  wire [15:0] prod;
  input rst;
  wire rst;
  input swap;
  wire swap;
  output swap_out;
  reg swap_out = 1'h0;
  input [7:0] w_in;
  wire [7:0] w_in;
  output [7:0] w_out;
  reg [7:0] w_out = 8'h00;
  reg [7:0] weight = 8'h00;
  always @(posedge clk)
    a_out <= \$2 ;
  always @(posedge clk)
    p_out <= \$3 ;
  always @(posedge clk)
    swap_out <= \$4 ;
  always @(posedge clk)
    w_out <= \$5 ;
  always @(posedge clk)
    weight <= \$6 ;
  assign prod = $signed(a_in) * $signed(weight);
  assign \$1  = $signed(p_in) + $signed(prod);
  always @* begin
    \$3  = \$1 [31:0];
    if (rst) begin
      \$3  = 32'd0;
    end
  end
  always @* begin
    \$4  = swap;
    if (rst) begin
      \$4  = 1'h0;
    end
  end
  always @* begin
    \$5  = w_out;
    if (load) begin
      \$5  = w_in;
    end
    if (rst) begin
      \$5  = 8'h00;
    end
  end
  always @* begin
    \$6  = weight;
    if (swap) begin
      \$6  = w_out;
    end
    if (rst) begin
      \$6  = 8'h00;
    end
  end
  always @* begin
    \$2  = a_in;
    if (rst) begin
      \$2  = 8'h00;
    end
  end
endmodule

module bare_array (clk, rst, load, swap, w, a, p);
  input clk, rst, load, swap;
  input [127:0] w, a;  // lane i of 8 bits: weight into column i, activation into row i
  output [511:0] p;    // lane i of 32 bits: sum out of column i
  wire [7:0] w0_0, w0_1, w0_2, w0_3, w0_4, w0_5, w0_6, w0_7, w0_8, w0_9, w0_10, w0_11, w0_12, w0_13, w0_14, w0_15;
  wire [7:0] a0_0, a0_1, a0_2, a0_3, a0_4, a0_5, a0_6, a0_7, a0_8, a0_9, a0_10, a0_11, a0_12, a0_13, a0_14, a0_15;
  wire [31:0] p0_0, p0_1, p0_2, p0_3, p0_4, p0_5, p0_6, p0_7, p0_8, p0_9, p0_10, p0_11, p0_12, p0_13, p0_14, p0_15;
  wire s0_0, s0_1, s0_2, s0_3, s0_4, s0_5, s0_6, s0_7, s0_8, s0_9, s0_10, s0_11, s0_12, s0_13, s0_14, s0_15;
  wire [7:0] w1_0, w1_1, w1_2, w1_3, w1_4, w1_5, w1_6, w1_7, w1_8, w1_9, w1_10, w1_11, w1_12, w1_13, w1_14, w1_15;
  wire [7:0] a1_0, a1_1, a1_2, a1_3, a1_4, a1_5, a1_6, a1_7, a1_8, a1_9, a1_10, a1_11, a1_12, a1_13, a1_14, a1_15;
  wire [31:0] p1_0, p1_1, p1_2, p1_3, p1_4, p1_5, p1_6, p1_7, p1_8, p1_9, p1_10, p1_11, p1_12, p1_13, p1_14, p1_15;
  wire s1_0, s1_1, s1_2, s1_3, s1_4, s1_5, s1_6, s1_7, s1_8, s1_9, s1_10, s1_11, s1_12, s1_13, s1_14, s1_15;
  wire [7:0] w2_0, w2_1, w2_2, w2_3, w2_4, w2_5, w2_6, w2_7, w2_8, w2_9, w2_10, w2_11, w2_12, w2_13, w2_14, w2_15;
  wire [7:0] a2_0, a2_1, a2_2, a2_3, a2_4, a2_5, a2_6, a2_7, a2_8, a2_9, a2_10, a2_11, a2_12, a2_13, a2_14, a2_15;
  wire [31:0] p2_0, p2_1, p2_2, p2_3, p2_4, p2_5, p2_6, p2_7, p2_8, p2_9, p2_10, p2_11, p2_12, p2_13, p2_14, p2_15;
  wire s2_0, s2_1, s2_2, s2_3, s2_4, s2_5, s2_6, s2_7, s2_8, s2_9, s2_10, s2_11, s2_12, s2_13, s2_14, s2_15;
  wire [7:0] w3_0, w3_1, w3_2, w3_3, w3_4, w3_5, w3_6, w3_7, w3_8, w3_9, w3_10, w3_11, w3_12, w3_13, w3_14, w3_15;
  wire [7:0] a3_0, a3_1, a3_2, a3_3, a3_4, a3_5, a3_6, a3_7, a3_8, a3_9, a3_10, a3_11, a3_12, a3_13, a3_14, a3_15;
  wire [31:0] p3_0, p3_1, p3_2, p3_3, p3_4, p3_5, p3_6, p3_7, p3_8, p3_9, p3_10, p3_11, p3_12, p3_13, p3_14, p3_15;
  wire s3_0, s3_1, s3_2, s3_3, s3_4, s3_5, s3_6, s3_7, s3_8, s3_9, s3_10, s3_11, s3_12, s3_13, s3_14, s3_15;
  wire [7:0] w4_0, w4_1, w4_2, w4_3, w4_4, w4_5, w4_6, w4_7, w4_8, w4_9, w4_10, w4_11, w4_12, w4_13, w4_14, w4_15;
  wire [7:0] a4_0, a4_1, a4_2, a4_3, a4_4, a4_5, a4_6, a4_7, a4_8, a4_9, a4_10, a4_11, a4_12, a4_13, a4_14, a4_15;
  wire [31:0] p4_0, p4_1, p4_2, p4_3, p4_4, p4_5, p4_6, p4_7, p4_8, p4_9, p4_10, p4_11, p4_12, p4_13, p4_14, p4_15;
  wire s4_0, s4_1, s4_2, s4_3, s4_4, s4_5, s4_6, s4_7, s4_8, s4_9, s4_10, s4_11, s4_12, s4_13, s4_14, s4_15;
  wire [7:0] w5_0, w5_1, w5_2, w5_3, w5_4, w5_5, w5_6, w5_7, w5_8, w5_9, w5_10, w5_11, w5_12, w5_13, w5_14, w5_15;
  wire [7:0] a5_0, a5_1, a5_2, a5_3, a5_4, a5_5, a5_6, a5_7, a5_8, a5_9, a5_10, a5_11, a5_12, a5_13, a5_14, a5_15;
  wire [31:0] p5_0, p5_1, p5_2, p5_3, p5_4, p5_5, p5_6, p5_7, p5_8, p5_9, p5_10, p5_11, p5_12, p5_13, p5_14, p5_15;
  wire s5_0, s5_1, s5_2, s5_3, s5_4, s5_5, s5_6, s5_7, s5_8, s5_9, s5_10, s5_11, s5_12, s5_13, s5_14, s5_15;
  wire [7:0] w6_0, w6_1, w6_2, w6_3, w6_4, w6_5, w6_6, w6_7, w6_8, w6_9, w6_10, w6_11, w6_12, w6_13, w6_14, w6_15;
  wire [7:0] a6_0, a6_1, a6_2, a6_3, a6_4, a6_5, a6_6, a6_7, a6_8, a6_9, a6_10, a6_11, a6_12, a6_13, a6_14, a6_15;
  wire [31:0] p6_0, p6_1, p6_2, p6_3, p6_4, p6_5, p6_6, p6_7, p6_8, p6_9, p6_10, p6_11, p6_12, p6_13, p6_14, p6_15;
  wire s6_0, s6_1, s6_2, s6_3, s6_4, s6_5, s6_6, s6_7, s6_8, s6_9, s6_10, s6_11, s6_12, s6_13, s6_14, s6_15;
  wire [7:0] w7_0, w7_1, w7_2, w7_3, w7_4, w7_5, w7_6, w7_7, w7_8, w7_9, w7_10, w7_11, w7_12, w7_13, w7_14, w7_15;
  wire [7:0] a7_0, a7_1, a7_2, a7_3, a7_4, a7_5, a7_6, a7_7, a7_8, a7_9, a7_10, a7_11, a7_12, a7_13, a7_14, a7_15;
  wire [31:0] p7_0, p7_1, p7_2, p7_3, p7_4, p7_5, p7_6, p7_7, p7_8, p7_9, p7_10, p7_11, p7_12, p7_13, p7_14, p7_15;
  wire s7_0, s7_1, s7_2, s7_3, s7_4, s7_5, s7_6, s7_7, s7_8, s7_9, s7_10, s7_11, s7_12, s7_13, s7_14, s7_15;
  wire [7:0] w8_0, w8_1, w8_2, w8_3, w8_4, w8_5, w8_6, w8_7, w8_8, w8_9, w8_10, w8_11, w8_12, w8_13, w8_14, w8_15;
  wire [7:0] a8_0, a8_1, a8_2, a8_3, a8_4, a8_5, a8_6, a8_7, a8_8, a8_9, a8_10, a8_11, a8_12, a8_13, a8_14, a8_15;
  wire [31:0] p8_0, p8_1, p8_2, p8_3, p8_4, p8_5, p8_6, p8_7, p8_8, p8_9, p8_10, p8_11, p8_12, p8_13, p8_14, p8_15;
  wire s8_0, s8_1, s8_2, s8_3, s8_4, s8_5, s8_6, s8_7, s8_8, s8_9, s8_10, s8_11, s8_12, s8_13, s8_14, s8_15;
  wire [7:0] w9_0, w9_1, w9_2, w9_3, w9_4, w9_5, w9_6, w9_7, w9_8, w9_9, w9_10, w9_11, w9_12, w9_13, w9_14, w9_15;
  wire [7:0] a9_0, a9_1, a9_2, a9_3, a9_4, a9_5, a9_6, a9_7, a9_8, a9_9, a9_10, a9_11, a9_12, a9_13, a9_14, a9_15;
  wire [31:0] p9_0, p9_1, p9_2, p9_3, p9_4, p9_5, p9_6, p9_7, p9_8, p9_9, p9_10, p9_11, p9_12, p9_13, p9_14, p9_15;
  wire s9_0, s9_1, s9_2, s9_3, s9_4, s9_5, s9_6, s9_7, s9_8, s9_9, s9_10, s9_11, s9_12, s9_13, s9_14, s9_15;
  wire [7:0] w10_0, w10_1, w10_2, w10_3, w10_4, w10_5, w10_6, w10_7, w10_8, w10_9, w10_10, w10_11, w10_12, w10_13, w10_14, w10_15;
  wire [7:0] a10_0, a10_1, a10_2, a10_3, a10_4, a10_5, a10_6, a10_7, a10_8, a10_9, a10_10, a10_11, a10_12, a10_13, a10_14, a10_15;
  wire [31:0] p10_0, p10_1, p10_2, p10_3, p10_4, p10_5, p10_6, p10_7, p10_8, p10_9, p10_10, p10_11, p10_12, p10_13, p10_14, p10_15;
  wire s10_0, s10_1, s10_2, s10_3, s10_4, s10_5, s10_6, s10_7, s10_8, s10_9, s10_10, s10_11, s10_12, s10_13, s10_14, s10_15;
  wire [7:0] w11_0, w11_1, w11_2, w11_3, w11_4, w11_5, w11_6, w11_7, w11_8, w11_9, w11_10, w11_11, w11_12, w11_13, w11_14, w11_15;
  wire [7:0] a11_0, a11_1, a11_2, a11_3, a11_4, a11_5, a11_6, a11_7, a11_8, a11_9, a11_10, a11_11, a11_12, a11_13, a11_14, a11_15;
  wire [31:0] p11_0, p11_1, p11_2, p11_3, p11_4, p11_5, p11_6, p11_7, p11_8, p11_9, p11_10, p11_11, p11_12, p11_13, p11_14, p11_15;
  wire s11_0, s11_1, s11_2, s11_3, s11_4, s11_5, s11_6, s11_7, s11_8, s11_9, s11_10, s11_11, s11_12, s11_13, s11_14, s11_15;
  wire [7:0] w12_0, w12_1, w12_2, w12_3, w12_4, w12_5, w12_6, w12_7, w12_8, w12_9, w12_10, w12_11, w12_12, w12_13, w12_14, w12_15;
  wire [7:0] a12_0, a12_1, a12_2, a12_3, a12_4, a12_5, a12_6, a12_7, a12_8, a12_9, a12_10, a12_11, a12_12, a12_13, a12_14, a12_15;
  wire [31:0] p12_0, p12_1, p12_2, p12_3, p12_4, p12_5, p12_6, p12_7, p12_8, p12_9, p12_10, p12_11, p12_12, p12_13, p12_14, p12_15;
  wire s12_0, s12_1, s12_2, s12_3, s12_4, s12_5, s12_6, s12_7, s12_8, s12_9, s12_10, s12_11, s12_12, s12_13, s12_14, s12_15;
  wire [7:0] w13_0, w13_1, w13_2, w13_3, w13_4, w13_5, w13_6, w13_7, w13_8, w13_9, w13_10, w13_11, w13_12, w13_13, w13_14, w13_15;
  wire [7:0] a13_0, a13_1, a13_2, a13_3, a13_4, a13_5, a13_6, a13_7, a13_8, a13_9, a13_10, a13_11, a13_12, a13_13, a13_14, a13_15;
  wire [31:0] p13_0, p13_1, p13_2, p13_3, p13_4, p13_5, p13_6, p13_7, p13_8, p13_9, p13_10, p13_11, p13_12, p13_13, p13_14, p13_15;
  wire s13_0, s13_1, s13_2, s13_3, s13_4, s13_5, s13_6, s13_7, s13_8, s13_9, s13_10, s13_11, s13_12, s13_13, s13_14, s13_15;
  wire [7:0] w14_0, w14_1, w14_2, w14_3, w14_4, w14_5, w14_6, w14_7, w14_8, w14_9, w14_10, w14_11, w14_12, w14_13, w14_14, w14_15;
  wire [7:0] a14_0, a14_1, a14_2, a14_3, a14_4, a14_5, a14_6, a14_7, a14_8, a14_9, a14_10, a14_11, a14_12, a14_13, a14_14, a14_15;
  wire [31:0] p14_0, p14_1, p14_2, p14_3, p14_4, p14_5, p14_6, p14_7, p14_8, p14_9, p14_10, p14_11, p14_12, p14_13, p14_14, p14_15;
  wire s14_0, s14_1, s14_2, s14_3, s14_4, s14_5, s14_6, s14_7, s14_8, s14_9, s14_10, s14_11, s14_12, s14_13, s14_14, s14_15;
  wire [7:0] w15_0, w15_1, w15_2, w15_3, w15_4, w15_5, w15_6, w15_7, w15_8, w15_9, w15_10, w15_11, w15_12, w15_13, w15_14, w15_15;
  wire [7:0] a15_0, a15_1, a15_2, a15_3, a15_4, a15_5, a15_6, a15_7, a15_8, a15_9, a15_10, a15_11, a15_12, a15_13, a15_14, a15_15;
  wire [31:0] p15_0, p15_1, p15_2, p15_3, p15_4, p15_5, p15_6, p15_7, p15_8, p15_9, p15_10, p15_11, p15_12, p15_13, p15_14, p15_15;
  wire s15_0, s15_1, s15_2, s15_3, s15_4, s15_5, s15_6, s15_7, s15_8, s15_9, s15_10, s15_11, s15_12, s15_13, s15_14, s15_15;
  bare_pe pe0_0 (clk, rst, load, swap, w[7:0], a[7:0], 32'd0, s0_0, w0_0, a0_0, p0_0);
  bare_pe pe0_1 (clk, rst, load, s0_0, w[15:8], a0_0, 32'd0, s0_1, w0_1, a0_1, p0_1);
  bare_pe pe0_2 (clk, rst, load, s0_1, w[23:16], a0_1, 32'd0, s0_2, w0_2, a0_2, p0_2);
  bare_pe pe0_3 (clk, rst, load, s0_2, w[31:24], a0_2, 32'd0, s0_3, w0_3, a0_3, p0_3);
  bare_pe pe0_4 (clk, rst, load, s0_3, w[39:32], a0_3, 32'd0, s0_4, w0_4, a0_4, p0_4);
  bare_pe pe0_5 (clk, rst, load, s0_4, w[47:40], a0_4, 32'd0, s0_5, w0_5, a0_5, p0_5);
  bare_pe pe0_6 (clk, rst, load, s0_5, w[55:48], a0_5, 32'd0, s0_6, w0_6, a0_6, p0_6);
  bare_pe pe0_7 (clk, rst, load, s0_6, w[63:56], a0_6, 32'd0, s0_7, w0_7, a0_7, p0_7);
  bare_pe pe0_8 (clk, rst, load, s0_7, w[71:64], a0_7, 32'd0, s0_8, w0_8, a0_8, p0_8);
  bare_pe pe0_9 (clk, rst, load, s0_8, w[79:72], a0_8, 32'd0, s0_9, w0_9, a0_9, p0_9);
  bare_pe pe0_10 (clk, rst, load, s0_9, w[87:80], a0_9, 32'd0, s0_10, w0_10, a0_10, p0_10);
  bare_pe pe0_11 (clk, rst, load, s0_10, w[95:88], a0_10, 32'd0, s0_11, w0_11, a0_11, p0_11);
  bare_pe pe0_12 (clk, rst, load, s0_11, w[103:96], a0_11, 32'd0, s0_12, w0_12, a0_12, p0_12);
  bare_pe pe0_13 (clk, rst, load, s0_12, w[111:104], a0_12, 32'd0, s0_13, w0_13, a0_13, p0_13);
  bare_pe pe0_14 (clk, rst, load, s0_13, w[119:112], a0_13, 32'd0, s0_14, w0_14, a0_14, p0_14);
  bare_pe pe0_15 (clk, rst, load, s0_14, w[127:120], a0_14, 32'd0, s0_15, w0_15, a0_15, p0_15);
  bare_pe pe1_0 (clk, rst, load, swap, w0_0, a[15:8], p0_0, s1_0, w1_0, a1_0, p1_0);
  bare_pe pe1_1 (clk, rst, load, s1_0, w0_1, a1_0, p0_1, s1_1, w1_1, a1_1, p1_1);
  bare_pe pe1_2 (clk, rst, load, s1_1, w0_2, a1_1, p0_2, s1_2, w1_2, a1_2, p1_2);
  bare_pe pe1_3 (clk, rst, load, s1_2, w0_3, a1_2, p0_3, s1_3, w1_3, a1_3, p1_3);
  bare_pe pe1_4 (clk, rst, load, s1_3, w0_4, a1_3, p0_4, s1_4, w1_4, a1_4, p1_4);
  bare_pe pe1_5 (clk, rst, load, s1_4, w0_5, a1_4, p0_5, s1_5, w1_5, a1_5, p1_5);
  bare_pe pe1_6 (clk, rst, load, s1_5, w0_6, a1_5, p0_6, s1_6, w1_6, a1_6, p1_6);
  bare_pe pe1_7 (clk, rst, load, s1_6, w0_7, a1_6, p0_7, s1_7, w1_7, a1_7, p1_7);
  bare_pe pe1_8 (clk, rst, load, s1_7, w0_8, a1_7, p0_8, s1_8, w1_8, a1_8, p1_8);
  bare_pe pe1_9 (clk, rst, load, s1_8, w0_9, a1_8, p0_9, s1_9, w1_9, a1_9, p1_9);
  bare_pe pe1_10 (clk, rst, load, s1_9, w0_10, a1_9, p0_10, s1_10, w1_10, a1_10, p1_10);
  bare_pe pe1_11 (clk, rst, load, s1_10, w0_11, a1_10, p0_11, s1_11, w1_11, a1_11, p1_11);
  bare_pe pe1_12 (clk, rst, load, s1_11, w0_12, a1_11, p0_12, s1_12, w1_12, a1_12, p1_12);
  bare_pe pe1_13 (clk, rst, load, s1_12, w0_13, a1_12, p0_13, s1_13, w1_13, a1_13, p1_13);
  bare_pe pe1_14 (clk, rst, load, s1_13, w0_14, a1_13, p0_14, s1_14, w1_14, a1_14, p1_14);
  bare_pe pe1_15 (clk, rst, load, s1_14, w0_15, a1_14, p0_15, s1_15, w1_15, a1_15, p1_15);
  bare_pe pe2_0 (clk, rst, load, swap, w1_0, a[23:16], p1_0, s2_0, w2_0, a2_0, p2_0);
  bare_pe pe2_1 (clk, rst, load, s2_0, w1_1, a2_0, p1_1, s2_1, w2_1, a2_1, p2_1);
  bare_pe pe2_2 (clk, rst, load, s2_1, w1_2, a2_1, p1_2, s2_2, w2_2, a2_2, p2_2);
  bare_pe pe2_3 (clk, rst, load, s2_2, w1_3, a2_2, p1_3, s2_3, w2_3, a2_3, p2_3);
  bare_pe pe2_4 (clk, rst, load, s2_3, w1_4, a2_3, p1_4, s2_4, w2_4, a2_4, p2_4);
  bare_pe pe2_5 (clk, rst, load, s2_4, w1_5, a2_4, p1_5, s2_5, w2_5, a2_5, p2_5);
  bare_pe pe2_6 (clk, rst, load, s2_5, w1_6, a2_5, p1_6, s2_6, w2_6, a2_6, p2_6);
  bare_pe pe2_7 (clk, rst, load, s2_6, w1_7, a2_6, p1_7, s2_7, w2_7, a2_7, p2_7);
  bare_pe pe2_8 (clk, rst, load, s2_7, w1_8, a2_7, p1_8, s2_8, w2_8, a2_8, p2_8);
  bare_pe pe2_9 (clk, rst, load, s2_8, w1_9, a2_8, p1_9, s2_9, w2_9, a2_9, p2_9);
  bare_pe pe2_10 (clk, rst, load, s2_9, w1_10, a2_9, p1_10, s2_10, w2_10, a2_10, p2_10);
  bare_pe pe2_11 (clk, rst, load, s2_10, w1_11, a2_10, p1_11, s2_11, w2_11, a2_11, p2_11);
  bare_pe pe2_12 (clk, rst, load, s2_11, w1_12, a2_11, p1_12, s2_12, w2_12, a2_12, p2_12);
  bare_pe pe2_13 (clk, rst, load, s2_12, w1_13, a2_12, p1_13, s2_13, w2_13, a2_13, p2_13);
  bare_pe pe2_14 (clk, rst, load, s2_13, w1_14, a2_13, p1_14, s2_14, w2_14, a2_14, p2_14);
  bare_pe pe2_15 (clk, rst, load, s2_14, w1_15, a2_14, p1_15, s2_15, w2_15, a2_15, p2_15);
  bare_pe pe3_0 (clk, rst, load, swap, w2_0, a[31:24], p2_0, s3_0, w3_0, a3_0, p3_0);
  bare_pe pe3_1 (clk, rst, load, s3_0, w2_1, a3_0, p2_1, s3_1, w3_1, a3_1, p3_1);
  bare_pe pe3_2 (clk, rst, load, s3_1, w2_2, a3_1, p2_2, s3_2, w3_2, a3_2, p3_2);
  bare_pe pe3_3 (clk, rst, load, s3_2, w2_3, a3_2, p2_3, s3_3, w3_3, a3_3, p3_3);
  bare_pe pe3_4 (clk, rst, load, s3_3, w2_4, a3_3, p2_4, s3_4, w3_4, a3_4, p3_4);
  bare_pe pe3_5 (clk, rst, load, s3_4, w2_5, a3_4, p2_5, s3_5, w3_5, a3_5, p3_5);
  bare_pe pe3_6 (clk, rst, load, s3_5, w2_6, a3_5, p2_6, s3_6, w3_6, a3_6, p3_6);
  bare_pe pe3_7 (clk, rst, load, s3_6, w2_7, a3_6, p2_7, s3_7, w3_7, a3_7, p3_7);
  bare_pe pe3_8 (clk, rst, load, s3_7, w2_8, a3_7, p2_8, s3_8, w3_8, a3_8, p3_8);
  bare_pe pe3_9 (clk, rst, load, s3_8, w2_9, a3_8, p2_9, s3_9, w3_9, a3_9, p3_9);
  bare_pe pe3_10 (clk, rst, load, s3_9, w2_10, a3_9, p2_10, s3_10, w3_10, a3_10, p3_10);
  bare_pe pe3_11 (clk, rst, load, s3_10, w2_11, a3_10, p2_11, s3_11, w3_11, a3_11, p3_11);
  bare_pe pe3_12 (clk, rst, load, s3_11, w2_12, a3_11, p2_12, s3_12, w3_12, a3_12, p3_12);
  bare_pe pe3_13 (clk, rst, load, s3_12, w2_13, a3_12, p2_13, s3_13, w3_13, a3_13, p3_13);
  bare_pe pe3_14 (clk, rst, load, s3_13, w2_14, a3_13, p2_14, s3_14, w3_14, a3_14, p3_14);
  bare_pe pe3_15 (clk, rst, load, s3_14, w2_15, a3_14, p2_15, s3_15, w3_15, a3_15, p3_15);
  bare_pe pe4_0 (clk, rst, load, swap, w3_0, a[39:32], p3_0, s4_0, w4_0, a4_0, p4_0);
  bare_pe pe4_1 (clk, rst, load, s4_0, w3_1, a4_0, p3_1, s4_1, w4_1, a4_1, p4_1);
  bare_pe pe4_2 (clk, rst, load, s4_1, w3_2, a4_1, p3_2, s4_2, w4_2, a4_2, p4_2);
  bare_pe pe4_3 (clk, rst, load, s4_2, w3_3, a4_2, p3_3, s4_3, w4_3, a4_3, p4_3);
  bare_pe pe4_4 (clk, rst, load, s4_3, w3_4, a4_3, p3_4, s4_4, w4_4, a4_4, p4_4);
  bare_pe pe4_5 (clk, rst, load, s4_4, w3_5, a4_4, p3_5, s4_5, w4_5, a4_5, p4_5);
  bare_pe pe4_6 (clk, rst, load, s4_5, w3_6, a4_5, p3_6, s4_6, w4_6, a4_6, p4_6);
  bare_pe pe4_7 (clk, rst, load, s4_6, w3_7, a4_6, p3_7, s4_7, w4_7, a4_7, p4_7);
  bare_pe pe4_8 (clk, rst, load, s4_7, w3_8, a4_7, p3_8, s4_8, w4_8, a4_8, p4_8);
  bare_pe pe4_9 (clk, rst, load, s4_8, w3_9, a4_8, p3_9, s4_9, w4_9, a4_9, p4_9);
  bare_pe pe4_10 (clk, rst, load, s4_9, w3_10, a4_9, p3_10, s4_10, w4_10, a4_10, p4_10);
  bare_pe pe4_11 (clk, rst, load, s4_10, w3_11, a4_10, p3_11, s4_11, w4_11, a4_11, p4_11);
  bare_pe pe4_12 (clk, rst, load, s4_11, w3_12, a4_11, p3_12, s4_12, w4_12, a4_12, p4_12);
  bare_pe pe4_13 (clk, rst, load, s4_12, w3_13, a4_12, p3_13, s4_13, w4_13, a4_13, p4_13);
  bare_pe pe4_14 (clk, rst, load, s4_13, w3_14, a4_13, p3_14, s4_14, w4_14, a4_14, p4_14);
  bare_pe pe4_15 (clk, rst, load, s4_14, w3_15, a4_14, p3_15, s4_15, w4_15, a4_15, p4_15);
  bare_pe pe5_0 (clk, rst, load, swap, w4_0, a[47:40], p4_0, s5_0, w5_0, a5_0, p5_0);
  bare_pe pe5_1 (clk, rst, load, s5_0, w4_1, a5_0, p4_1, s5_1, w5_1, a5_1, p5_1);
  bare_pe pe5_2 (clk, rst, load, s5_1, w4_2, a5_1, p4_2, s5_2, w5_2, a5_2, p5_2);
  bare_pe pe5_3 (clk, rst, load, s5_2, w4_3, a5_2, p4_3, s5_3, w5_3, a5_3, p5_3);
  bare_pe pe5_4 (clk, rst, load, s5_3, w4_4, a5_3, p4_4, s5_4, w5_4, a5_4, p5_4);
  bare_pe pe5_5 (clk, rst, load, s5_4, w4_5, a5_4, p4_5, s5_5, w5_5, a5_5, p5_5);
  bare_pe pe5_6 (clk, rst, load, s5_5, w4_6, a5_5, p4_6, s5_6, w5_6, a5_6, p5_6);
  bare_pe pe5_7 (clk, rst, load, s5_6, w4_7, a5_6, p4_7, s5_7, w5_7, a5_7, p5_7);
  bare_pe pe5_8 (clk, rst, load, s5_7, w4_8, a5_7, p4_8, s5_8, w5_8, a5_8, p5_8);
  bare_pe pe5_9 (clk, rst, load, s5_8, w4_9, a5_8, p4_9, s5_9, w5_9, a5_9, p5_9);
  bare_pe pe5_10 (clk, rst, load, s5_9, w4_10, a5_9, p4_10, s5_10, w5_10, a5_10, p5_10);
  bare_pe pe5_11 (clk, rst, load, s5_10, w4_11, a5_10, p4_11, s5_11, w5_11, a5_11, p5_11);
  bare_pe pe5_12 (clk, rst, load, s5_11, w4_12, a5_11, p4_12, s5_12, w5_12, a5_12, p5_12);
  bare_pe pe5_13 (clk, rst, load, s5_12, w4_13, a5_12, p4_13, s5_13, w5_13, a5_13, p5_13);
  bare_pe pe5_14 (clk, rst, load, s5_13, w4_14, a5_13, p4_14, s5_14, w5_14, a5_14, p5_14);
  bare_pe pe5_15 (clk, rst, load, s5_14, w4_15, a5_14, p4_15, s5_15, w5_15, a5_15, p5_15);
  bare_pe pe6_0 (clk, rst, load, swap, w5_0, a[55:48], p5_0, s6_0, w6_0, a6_0, p6_0);
  bare_pe pe6_1 (clk, rst, load, s6_0, w5_1, a6_0, p5_1, s6_1, w6_1, a6_1, p6_1);
  bare_pe pe6_2 (clk, rst, load, s6_1, w5_2, a6_1, p5_2, s6_2, w6_2, a6_2, p6_2);
  bare_pe pe6_3 (clk, rst, load, s6_2, w5_3, a6_2, p5_3, s6_3, w6_3, a6_3, p6_3);
  bare_pe pe6_4 (clk, rst, load, s6_3, w5_4, a6_3, p5_4, s6_4, w6_4, a6_4, p6_4);
  bare_pe pe6_5 (clk, rst, load, s6_4, w5_5, a6_4, p5_5, s6_5, w6_5, a6_5, p6_5);
  bare_pe pe6_6 (clk, rst, load, s6_5, w5_6, a6_5, p5_6, s6_6, w6_6, a6_6, p6_6);
  bare_pe pe6_7 (clk, rst, load, s6_6, w5_7, a6_6, p5_7, s6_7, w6_7, a6_7, p6_7);
  bare_pe pe6_8 (clk, rst, load, s6_7, w5_8, a6_7, p5_8, s6_8, w6_8, a6_8, p6_8);
  bare_pe pe6_9 (clk, rst, load, s6_8, w5_9, a6_8, p5_9, s6_9, w6_9, a6_9, p6_9);
  bare_pe pe6_10 (clk, rst, load, s6_9, w5_10, a6_9, p5_10, s6_10, w6_10, a6_10, p6_10);
  bare_pe pe6_11 (clk, rst, load, s6_10, w5_11, a6_10, p5_11, s6_11, w6_11, a6_11, p6_11);
  bare_pe pe6_12 (clk, rst, load, s6_11, w5_12, a6_11, p5_12, s6_12, w6_12, a6_12, p6_12);
  bare_pe pe6_13 (clk, rst, load, s6_12, w5_13, a6_12, p5_13, s6_13, w6_13, a6_13, p6_13);
  bare_pe pe6_14 (clk, rst, load, s6_13, w5_14, a6_13, p5_14, s6_14, w6_14, a6_14, p6_14);
  bare_pe pe6_15 (clk, rst, load, s6_14, w5_15, a6_14, p5_15, s6_15, w6_15, a6_15, p6_15);
  bare_pe pe7_0 (clk, rst, load, swap, w6_0, a[63:56], p6_0, s7_0, w7_0, a7_0, p7_0);
  bare_pe pe7_1 (clk, rst, load, s7_0, w6_1, a7_0, p6_1, s7_1, w7_1, a7_1, p7_1);
  bare_pe pe7_2 (clk, rst, load, s7_1, w6_2, a7_1, p6_2, s7_2, w7_2, a7_2, p7_2);
  bare_pe pe7_3 (clk, rst, load, s7_2, w6_3, a7_2, p6_3, s7_3, w7_3, a7_3, p7_3);
  bare_pe pe7_4 (clk, rst, load, s7_3, w6_4, a7_3, p6_4, s7_4, w7_4, a7_4, p7_4);
  bare_pe pe7_5 (clk, rst, load, s7_4, w6_5, a7_4, p6_5, s7_5, w7_5, a7_5, p7_5);
  bare_pe pe7_6 (clk, rst, load, s7_5, w6_6, a7_5, p6_6, s7_6, w7_6, a7_6, p7_6);
  bare_pe pe7_7 (clk, rst, load, s7_6, w6_7, a7_6, p6_7, s7_7, w7_7, a7_7, p7_7);
  bare_pe pe7_8 (clk, rst, load, s7_7, w6_8, a7_7, p6_8, s7_8, w7_8, a7_8, p7_8);
  bare_pe pe7_9 (clk, rst, load, s7_8, w6_9, a7_8, p6_9, s7_9, w7_9, a7_9, p7_9);
  bare_pe pe7_10 (clk, rst, load, s7_9, w6_10, a7_9, p6_10, s7_10, w7_10, a7_10, p7_10);
  bare_pe pe7_11 (clk, rst, load, s7_10, w6_11, a7_10, p6_11, s7_11, w7_11, a7_11, p7_11);
  bare_pe pe7_12 (clk, rst, load, s7_11, w6_12, a7_11, p6_12, s7_12, w7_12, a7_12, p7_12);
  bare_pe pe7_13 (clk, rst, load, s7_12, w6_13, a7_12, p6_13, s7_13, w7_13, a7_13, p7_13);
  bare_pe pe7_14 (clk, rst, load, s7_13, w6_14, a7_13, p6_14, s7_14, w7_14, a7_14, p7_14);
  bare_pe pe7_15 (clk, rst, load, s7_14, w6_15, a7_14, p6_15, s7_15, w7_15, a7_15, p7_15);
  bare_pe pe8_0 (clk, rst, load, swap, w7_0, a[71:64], p7_0, s8_0, w8_0, a8_0, p8_0);
  bare_pe pe8_1 (clk, rst, load, s8_0, w7_1, a8_0, p7_1, s8_1, w8_1, a8_1, p8_1);
  bare_pe pe8_2 (clk, rst, load, s8_1, w7_2, a8_1, p7_2, s8_2, w8_2, a8_2, p8_2);
  bare_pe pe8_3 (clk, rst, load, s8_2, w7_3, a8_2, p7_3, s8_3, w8_3, a8_3, p8_3);
  bare_pe pe8_4 (clk, rst, load, s8_3, w7_4, a8_3, p7_4, s8_4, w8_4, a8_4, p8_4);
  bare_pe pe8_5 (clk, rst, load, s8_4, w7_5, a8_4, p7_5, s8_5, w8_5, a8_5, p8_5);
  bare_pe pe8_6 (clk, rst, load, s8_5, w7_6, a8_5, p7_6, s8_6, w8_6, a8_6, p8_6);
  bare_pe pe8_7 (clk, rst, load, s8_6, w7_7, a8_6, p7_7, s8_7, w8_7, a8_7, p8_7);
  bare_pe pe8_8 (clk, rst, load, s8_7, w7_8, a8_7, p7_8, s8_8, w8_8, a8_8, p8_8);
  bare_pe pe8_9 (clk, rst, load, s8_8, w7_9, a8_8, p7_9, s8_9, w8_9, a8_9, p8_9);
  bare_pe pe8_10 (clk, rst, load, s8_9, w7_10, a8_9, p7_10, s8_10, w8_10, a8_10, p8_10);
  bare_pe pe8_11 (clk, rst, load, s8_10, w7_11, a8_10, p7_11, s8_11, w8_11, a8_11, p8_11);
  bare_pe pe8_12 (clk, rst, load, s8_11, w7_12, a8_11, p7_12, s8_12, w8_12, a8_12, p8_12);
  bare_pe pe8_13 (clk, rst, load, s8_12, w7_13, a8_12, p7_13, s8_13, w8_13, a8_13, p8_13);
  bare_pe pe8_14 (clk, rst, load, s8_13, w7_14, a8_13, p7_14, s8_14, w8_14, a8_14, p8_14);
  bare_pe pe8_15 (clk, rst, load, s8_14, w7_15, a8_14, p7_15, s8_15, w8_15, a8_15, p8_15);
  bare_pe pe9_0 (clk, rst, load, swap, w8_0, a[79:72], p8_0, s9_0, w9_0, a9_0, p9_0);
  bare_pe pe9_1 (clk, rst, load, s9_0, w8_1, a9_0, p8_1, s9_1, w9_1, a9_1, p9_1);
  bare_pe pe9_2 (clk, rst, load, s9_1, w8_2, a9_1, p8_2, s9_2, w9_2, a9_2, p9_2);
  bare_pe pe9_3 (clk, rst, load, s9_2, w8_3, a9_2, p8_3, s9_3, w9_3, a9_3, p9_3);
  bare_pe pe9_4 (clk, rst, load, s9_3, w8_4, a9_3, p8_4, s9_4, w9_4, a9_4, p9_4);
  bare_pe pe9_5 (clk, rst, load, s9_4, w8_5, a9_4, p8_5, s9_5, w9_5, a9_5, p9_5);
  bare_pe pe9_6 (clk, rst, load, s9_5, w8_6, a9_5, p8_6, s9_6, w9_6, a9_6, p9_6);
  bare_pe pe9_7 (clk, rst, load, s9_6, w8_7, a9_6, p8_7, s9_7, w9_7, a9_7, p9_7);
  bare_pe pe9_8 (clk, rst, load, s9_7, w8_8, a9_7, p8_8, s9_8, w9_8, a9_8, p9_8);
  bare_pe pe9_9 (clk, rst, load, s9_8, w8_9, a9_8, p8_9, s9_9, w9_9, a9_9, p9_9);
  bare_pe pe9_10 (clk, rst, load, s9_9, w8_10, a9_9, p8_10, s9_10, w9_10, a9_10, p9_10);
  bare_pe pe9_11 (clk, rst, load, s9_10, w8_11, a9_10, p8_11, s9_11, w9_11, a9_11, p9_11);
  bare_pe pe9_12 (clk, rst, load, s9_11, w8_12, a9_11, p8_12, s9_12, w9_12, a9_12, p9_12);
  bare_pe pe9_13 (clk, rst, load, s9_12, w8_13, a9_12, p8_13, s9_13, w9_13, a9_13, p9_13);
  bare_pe pe9_14 (clk, rst, load, s9_13, w8_14, a9_13, p8_14, s9_14, w9_14, a9_14, p9_14);
  bare_pe pe9_15 (clk, rst, load, s9_14, w8_15, a9_14, p8_15, s9_15, w9_15, a9_15, p9_15);
  bare_pe pe10_0 (clk, rst, load, swap, w9_0, a[87:80], p9_0, s10_0, w10_0, a10_0, p10_0);
  bare_pe pe10_1 (clk, rst, load, s10_0, w9_1, a10_0, p9_1, s10_1, w10_1, a10_1, p10_1);
  bare_pe pe10_2 (clk, rst, load, s10_1, w9_2, a10_1, p9_2, s10_2, w10_2, a10_2, p10_2);
  bare_pe pe10_3 (clk, rst, load, s10_2, w9_3, a10_2, p9_3, s10_3, w10_3, a10_3, p10_3);
  bare_pe pe10_4 (clk, rst, load, s10_3, w9_4, a10_3, p9_4, s10_4, w10_4, a10_4, p10_4);
  bare_pe pe10_5 (clk, rst, load, s10_4, w9_5, a10_4, p9_5, s10_5, w10_5, a10_5, p10_5);
  bare_pe pe10_6 (clk, rst, load, s10_5, w9_6, a10_5, p9_6, s10_6, w10_6, a10_6, p10_6);
  bare_pe pe10_7 (clk, rst, load, s10_6, w9_7, a10_6, p9_7, s10_7, w10_7, a10_7, p10_7);
  bare_pe pe10_8 (clk, rst, load, s10_7, w9_8, a10_7, p9_8, s10_8, w10_8, a10_8, p10_8);
  bare_pe pe10_9 (clk, rst, load, s10_8, w9_9, a10_8, p9_9, s10_9, w10_9, a10_9, p10_9);
  bare_pe pe10_10 (clk, rst, load, s10_9, w9_10, a10_9, p9_10, s10_10, w10_10, a10_10, p10_10);
  bare_pe pe10_11 (clk, rst, load, s10_10, w9_11, a10_10, p9_11, s10_11, w10_11, a10_11, p10_11);
  bare_pe pe10_12 (clk, rst, load, s10_11, w9_12, a10_11, p9_12, s10_12, w10_12, a10_12, p10_12);
  bare_pe pe10_13 (clk, rst, load, s10_12, w9_13, a10_12, p9_13, s10_13, w10_13, a10_13, p10_13);
  bare_pe pe10_14 (clk, rst, load, s10_13, w9_14, a10_13, p9_14, s10_14, w10_14, a10_14, p10_14);
  bare_pe pe10_15 (clk, rst, load, s10_14, w9_15, a10_14, p9_15, s10_15, w10_15, a10_15, p10_15);
  bare_pe pe11_0 (clk, rst, load, swap, w10_0, a[95:88], p10_0, s11_0, w11_0, a11_0, p11_0);
  bare_pe pe11_1 (clk, rst, load, s11_0, w10_1, a11_0, p10_1, s11_1, w11_1, a11_1, p11_1);
  bare_pe pe11_2 (clk, rst, load, s11_1, w10_2, a11_1, p10_2, s11_2, w11_2, a11_2, p11_2);
  bare_pe pe11_3 (clk, rst, load, s11_2, w10_3, a11_2, p10_3, s11_3, w11_3, a11_3, p11_3);
  bare_pe pe11_4 (clk, rst, load, s11_3, w10_4, a11_3, p10_4, s11_4, w11_4, a11_4, p11_4);
  bare_pe pe11_5 (clk, rst, load, s11_4, w10_5, a11_4, p10_5, s11_5, w11_5, a11_5, p11_5);
  bare_pe pe11_6 (clk, rst, load, s11_5, w10_6, a11_5, p10_6, s11_6, w11_6, a11_6, p11_6);
  bare_pe pe11_7 (clk, rst, load, s11_6, w10_7, a11_6, p10_7, s11_7, w11_7, a11_7, p11_7);
  bare_pe pe11_8 (clk, rst, load, s11_7, w10_8, a11_7, p10_8, s11_8, w11_8, a11_8, p11_8);
  bare_pe pe11_9 (clk, rst, load, s11_8, w10_9, a11_8, p10_9, s11_9, w11_9, a11_9, p11_9);
  bare_pe pe11_10 (clk, rst, load, s11_9, w10_10, a11_9, p10_10, s11_10, w11_10, a11_10, p11_10);
  bare_pe pe11_11 (clk, rst, load, s11_10, w10_11, a11_10, p10_11, s11_11, w11_11, a11_11, p11_11);
  bare_pe pe11_12 (clk, rst, load, s11_11, w10_12, a11_11, p10_12, s11_12, w11_12, a11_12, p11_12);
  bare_pe pe11_13 (clk, rst, load, s11_12, w10_13, a11_12, p10_13, s11_13, w11_13, a11_13, p11_13);
  bare_pe pe11_14 (clk, rst, load, s11_13, w10_14, a11_13, p10_14, s11_14, w11_14, a11_14, p11_14);
  bare_pe pe11_15 (clk, rst, load, s11_14, w10_15, a11_14, p10_15, s11_15, w11_15, a11_15, p11_15);
  bare_pe pe12_0 (clk, rst, load, swap, w11_0, a[103:96], p11_0, s12_0, w12_0, a12_0, p12_0);
  bare_pe pe12_1 (clk, rst, load, s12_0, w11_1, a12_0, p11_1, s12_1, w12_1, a12_1, p12_1);
  bare_pe pe12_2 (clk, rst, load, s12_1, w11_2, a12_1, p11_2, s12_2, w12_2, a12_2, p12_2);
  bare_pe pe12_3 (clk, rst, load, s12_2, w11_3, a12_2, p11_3, s12_3, w12_3, a12_3, p12_3);
  bare_pe pe12_4 (clk, rst, load, s12_3, w11_4, a12_3, p11_4, s12_4, w12_4, a12_4, p12_4);
  bare_pe pe12_5 (clk, rst, load, s12_4, w11_5, a12_4, p11_5, s12_5, w12_5, a12_5, p12_5);
  bare_pe pe12_6 (clk, rst, load, s12_5, w11_6, a12_5, p11_6, s12_6, w12_6, a12_6, p12_6);
  bare_pe pe12_7 (clk, rst, load, s12_6, w11_7, a12_6, p11_7, s12_7, w12_7, a12_7, p12_7);
  bare_pe pe12_8 (clk, rst, load, s12_7, w11_8, a12_7, p11_8, s12_8, w12_8, a12_8, p12_8);
  bare_pe pe12_9 (clk, rst, load, s12_8, w11_9, a12_8, p11_9, s12_9, w12_9, a12_9, p12_9);
  bare_pe pe12_10 (clk, rst, load, s12_9, w11_10, a12_9, p11_10, s12_10, w12_10, a12_10, p12_10);
  bare_pe pe12_11 (clk, rst, load, s12_10, w11_11, a12_10, p11_11, s12_11, w12_11, a12_11, p12_11);
  bare_pe pe12_12 (clk, rst, load, s12_11, w11_12, a12_11, p11_12, s12_12, w12_12, a12_12, p12_12);
  bare_pe pe12_13 (clk, rst, load, s12_12, w11_13, a12_12, p11_13, s12_13, w12_13, a12_13, p12_13);
  bare_pe pe12_14 (clk, rst, load, s12_13, w11_14, a12_13, p11_14, s12_14, w12_14, a12_14, p12_14);
  bare_pe pe12_15 (clk, rst, load, s12_14, w11_15, a12_14, p11_15, s12_15, w12_15, a12_15, p12_15);
  bare_pe pe13_0 (clk, rst, load, swap, w12_0, a[111:104], p12_0, s13_0, w13_0, a13_0, p13_0);
  bare_pe pe13_1 (clk, rst, load, s13_0, w12_1, a13_0, p12_1, s13_1, w13_1, a13_1, p13_1);
  bare_pe pe13_2 (clk, rst, load, s13_1, w12_2, a13_1, p12_2, s13_2, w13_2, a13_2, p13_2);
  bare_pe pe13_3 (clk, rst, load, s13_2, w12_3, a13_2, p12_3, s13_3, w13_3, a13_3, p13_3);
  bare_pe pe13_4 (clk, rst, load, s13_3, w12_4, a13_3, p12_4, s13_4, w13_4, a13_4, p13_4);
  bare_pe pe13_5 (clk, rst, load, s13_4, w12_5, a13_4, p12_5, s13_5, w13_5, a13_5, p13_5);
  bare_pe pe13_6 (clk, rst, load, s13_5, w12_6, a13_5, p12_6, s13_6, w13_6, a13_6, p13_6);
  bare_pe pe13_7 (clk, rst, load, s13_6, w12_7, a13_6, p12_7, s13_7, w13_7, a13_7, p13_7);
  bare_pe pe13_8 (clk, rst, load, s13_7, w12_8, a13_7, p12_8, s13_8, w13_8, a13_8, p13_8);
  bare_pe pe13_9 (clk, rst, load, s13_8, w12_9, a13_8, p12_9, s13_9, w13_9, a13_9, p13_9);
  bare_pe pe13_10 (clk, rst, load, s13_9, w12_10, a13_9, p12_10, s13_10, w13_10, a13_10, p13_10);
  bare_pe pe13_11 (clk, rst, load, s13_10, w12_11, a13_10, p12_11, s13_11, w13_11, a13_11, p13_11);
  bare_pe pe13_12 (clk, rst, load, s13_11, w12_12, a13_11, p12_12, s13_12, w13_12, a13_12, p13_12);
  bare_pe pe13_13 (clk, rst, load, s13_12, w12_13, a13_12, p12_13, s13_13, w13_13, a13_13, p13_13);
  bare_pe pe13_14 (clk, rst, load, s13_13, w12_14, a13_13, p12_14, s13_14, w13_14, a13_14, p13_14);
  bare_pe pe13_15 (clk, rst, load, s13_14, w12_15, a13_14, p12_15, s13_15, w13_15, a13_15, p13_15);
  bare_pe pe14_0 (clk, rst, load, swap, w13_0, a[119:112], p13_0, s14_0, w14_0, a14_0, p14_0);
  bare_pe pe14_1 (clk, rst, load, s14_0, w13_1, a14_0, p13_1, s14_1, w14_1, a14_1, p14_1);
  bare_pe pe14_2 (clk, rst, load, s14_1, w13_2, a14_1, p13_2, s14_2, w14_2, a14_2, p14_2);
  bare_pe pe14_3 (clk, rst, load, s14_2, w13_3, a14_2, p13_3, s14_3, w14_3, a14_3, p14_3);
  bare_pe pe14_4 (clk, rst, load, s14_3, w13_4, a14_3, p13_4, s14_4, w14_4, a14_4, p14_4);
  bare_pe pe14_5 (clk, rst, load, s14_4, w13_5, a14_4, p13_5, s14_5, w14_5, a14_5, p14_5);
  bare_pe pe14_6 (clk, rst, load, s14_5, w13_6, a14_5, p13_6, s14_6, w14_6, a14_6, p14_6);
  bare_pe pe14_7 (clk, rst, load, s14_6, w13_7, a14_6, p13_7, s14_7, w14_7, a14_7, p14_7);
  bare_pe pe14_8 (clk, rst, load, s14_7, w13_8, a14_7, p13_8, s14_8, w14_8, a14_8, p14_8);
  bare_pe pe14_9 (clk, rst, load, s14_8, w13_9, a14_8, p13_9, s14_9, w14_9, a14_9, p14_9);
  bare_pe pe14_10 (clk, rst, load, s14_9, w13_10, a14_9, p13_10, s14_10, w14_10, a14_10, p14_10);
  bare_pe pe14_11 (clk, rst, load, s14_10, w13_11, a14_10, p13_11, s14_11, w14_11, a14_11, p14_11);
  bare_pe pe14_12 (clk, rst, load, s14_11, w13_12, a14_11, p13_12, s14_12, w14_12, a14_12, p14_12);
  bare_pe pe14_13 (clk, rst, load, s14_12, w13_13, a14_12, p13_13, s14_13, w14_13, a14_13, p14_13);
  bare_pe pe14_14 (clk, rst, load, s14_13, w13_14, a14_13, p13_14, s14_14, w14_14, a14_14, p14_14);
  bare_pe pe14_15 (clk, rst, load, s14_14, w13_15, a14_14, p13_15, s14_15, w14_15, a14_15, p14_15);
  bare_pe pe15_0 (clk, rst, load, swap, w14_0, a[127:120], p14_0, s15_0, w15_0, a15_0, p15_0);
  bare_pe pe15_1 (clk, rst, load, s15_0, w14_1, a15_0, p14_1, s15_1, w15_1, a15_1, p15_1);
  bare_pe pe15_2 (clk, rst, load, s15_1, w14_2, a15_1, p14_2, s15_2, w15_2, a15_2, p15_2);
  bare_pe pe15_3 (clk, rst, load, s15_2, w14_3, a15_2, p14_3, s15_3, w15_3, a15_3, p15_3);
  bare_pe pe15_4 (clk, rst, load, s15_3, w14_4, a15_3, p14_4, s15_4, w15_4, a15_4, p15_4);
  bare_pe pe15_5 (clk, rst, load, s15_4, w14_5, a15_4, p14_5, s15_5, w15_5, a15_5, p15_5);
  bare_pe pe15_6 (clk, rst, load, s15_5, w14_6, a15_5, p14_6, s15_6, w15_6, a15_6, p15_6);
  bare_pe pe15_7 (clk, rst, load, s15_6, w14_7, a15_6, p14_7, s15_7, w15_7, a15_7, p15_7);
  bare_pe pe15_8 (clk, rst, load, s15_7, w14_8, a15_7, p14_8, s15_8, w15_8, a15_8, p15_8);
  bare_pe pe15_9 (clk, rst, load, s15_8, w14_9, a15_8, p14_9, s15_9, w15_9, a15_9, p15_9);
  bare_pe pe15_10 (clk, rst, load, s15_9, w14_10, a15_9, p14_10, s15_10, w15_10, a15_10, p15_10);
  bare_pe pe15_11 (clk, rst, load, s15_10, w14_11, a15_10, p14_11, s15_11, w15_11, a15_11, p15_11);
  bare_pe pe15_12 (clk, rst, load, s15_11, w14_12, a15_11, p14_12, s15_12, w15_12, a15_12, p15_12);
  bare_pe pe15_13 (clk, rst, load, s15_12, w14_13, a15_12, p14_13, s15_13, w15_13, a15_13, p15_13);
  bare_pe pe15_14 (clk, rst, load, s15_13, w14_14, a15_13, p14_14, s15_14, w15_14, a15_14, p15_14);
  bare_pe pe15_15 (clk, rst, load, s15_14, w14_15, a15_14, p14_15, s15_15, w15_15, a15_15, p15_15);
  assign p = {p15_15, p15_14, p15_13, p15_12, p15_11, p15_10, p15_9, p15_8, p15_7, p15_6, p15_5, p15_4, p15_3, p15_2, p15_1, p15_0};
endmodule
