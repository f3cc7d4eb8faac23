// Simulation top: the chip, its DRAM and its host. The clock comes from main.cpp; DRAM and host are C++ code
// that is called through DPI, only at clock edges at which it has work.
module mla_top #(
    parameter int N = 16  // bus width in bytes
) (
    input  logic clk,
    input  logic rst,
    input  logic poke,  // the host model has accesses to execute
    output logic irq /*verilator public_flat_rd*/  // public, because cocotb would otherwise find no design
);
    localparam int W = 8 * N;

    import "DPI-C" function int unsigned mla_dram_step(
        input int unsigned ctl, input int unsigned ar_addr, input int unsigned ar_attr,
        input int unsigned aw_addr, input int unsigned aw_attr, input int unsigned strobe,
        input bit [W-1:0] wdata, output bit [W-1:0] rdata, input int unsigned row);
    import "DPI-C" function int unsigned mla_host_step(
        input int unsigned ctl, input int unsigned r_data,
        output int unsigned addr, output int unsigned data);

    // This is registered, because logic that depends on a top-level port is evaluated at every call, twice per cycle.
    logic reset = 1;
    always_ff @(posedge clk) reset <= rst;

    // -- DRAM -----------------------------------------------------------------------------------------
    logic [1:0] arid, awid, arburst, awburst;
    logic [7:0] arlen, awlen;
    logic [2:0] arsize, awsize;
    logic [31:0] araddr, awaddr;
    logic arvalid, awvalid, wvalid, wlast, rready, bready;
    logic [W-1:0] wdata, rdata;
    logic [N-1:0] wstrb;

    typedef struct packed {
        logic busy;
        logic wready;
        logic [1:0] bid;
        logic [1:0] bresp;
        logic bvalid;
        logic [1:0] rid;
        logic [1:0] rresp;
        logic rlast;
        logic rvalid;
    } dram_out_t;
    localparam dram_out_t DRAM_IDLE = '{busy: 1'b1, default: '0};
    dram_out_t dram = DRAM_IDLE;

    // At most one address is accepted per cycle; if both channels offer one, they take turns.
    logic aw_turn = 0;
    wire arready = ~(aw_turn & awvalid);
    wire awready = aw_turn | ~arvalid;

    int unsigned dram_next;
    bit [W-1:0] rdata_next;
    always_ff @(posedge clk) begin
        if (reset) begin
            dram <= DRAM_IDLE;
            aw_turn <= 0;
        end else begin
            if (arvalid & awvalid) aw_turn <= ~aw_turn;
            if (dram.busy | arvalid | awvalid | wvalid) begin
                dram_next = mla_dram_step(
                    {25'b0, bready, rready, wlast, wvalid & dram.wready, wvalid, awvalid & awready, arvalid & arready},
                    araddr, {17'b0, arid, arlen, arsize, arburst},
                    awaddr, {17'b0, awid, awlen, awsize, awburst},
                    32'(wstrb), wdata, rdata_next, N);
                dram <= dram_next[12:0];
                rdata <= rdata_next;
            end
        end
    end

    // -- host -----------------------------------------------------------------------------------------
    logic s_awready, s_wready, s_bvalid, s_arready, s_rvalid;
    logic [1:0] s_bresp, s_rresp;
    logic [31:0] s_rdata, host_addr, host_data;

    typedef struct packed {
        logic active;
        logic rready;
        logic arvalid;
        logic bready;
        logic wvalid;
        logic awvalid;
    } host_out_t;
    host_out_t host = '0;

    int unsigned host_next, addr_next, data_next;
    always_ff @(posedge clk) begin
        if (reset) begin
            host <= '0;
        end else if (poke | host.active) begin
            host_next = mla_host_step(
                {23'b0, s_rresp, s_bresp, s_rvalid, s_arready, s_bvalid, s_wready, s_awready},
                s_rdata, addr_next, data_next);
            host <= host_next[5:0];
            host_addr <= addr_next;
            host_data <= data_next;
        end
    end

    mla_chip chip (
        .clk(clk),
        .rst(reset),
        .irq(irq),
        .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize),
        .m_axi_awburst(awburst), .m_axi_awvalid(awvalid), .m_axi_awready(awready),
        .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast),
        .m_axi_wvalid(wvalid), .m_axi_wready(dram.wready),
        .m_axi_bid(dram.bid), .m_axi_bresp(dram.bresp), .m_axi_bvalid(dram.bvalid), .m_axi_bready(bready),
        .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize),
        .m_axi_arburst(arburst), .m_axi_arvalid(arvalid), .m_axi_arready(arready),
        .m_axi_rid(dram.rid), .m_axi_rdata(rdata), .m_axi_rresp(dram.rresp), .m_axi_rlast(dram.rlast),
        .m_axi_rvalid(dram.rvalid), .m_axi_rready(rready),
        .s_axil_awaddr(host_addr[15:0]), .s_axil_awvalid(host.awvalid), .s_axil_awready(s_awready),
        .s_axil_wdata(host_data), .s_axil_wstrb(4'hf), .s_axil_wvalid(host.wvalid), .s_axil_wready(s_wready),
        .s_axil_bresp(s_bresp), .s_axil_bvalid(s_bvalid), .s_axil_bready(host.bready),
        .s_axil_araddr(host_addr[15:0]), .s_axil_arvalid(host.arvalid), .s_axil_arready(s_arready),
        .s_axil_rdata(s_rdata), .s_axil_rresp(s_rresp), .s_axil_rvalid(s_rvalid), .s_axil_rready(host.rready)
    );
endmodule
