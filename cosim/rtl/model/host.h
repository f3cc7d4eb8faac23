// AXI4-Lite master that executes a list of register accesses, one after another.
#pragma once

#include <cstdint>

namespace mla {

// Register access. The caller sets the first three members; a read stores its result in `data`.
struct HostOp {
    uint32_t write, addr, data;
    uint32_t response;  // AXI response, or NO_ANSWER
};

// Outputs of the chip at one clock edge.
struct HostPins {
    bool aw_ready, w_ready, b_valid, ar_ready, r_valid;
    uint8_t b_response, r_response;
    uint32_t r_data;
};

class Host {
public:
    static constexpr uint32_t NO_ANSWER = 4;

    // Starts the accesses at clock edge `start`; `ops` must remain valid until done().
    void begin(HostOp* ops, uint32_t count, uint64_t start);
    bool done() const { return next_ == count_; }
    bool due(uint64_t now) const { return !done() && now >= start_; }
    // Executes one clock edge. Returns the control outputs in the packing that mla_top.sv expects.
    uint32_t step(uint64_t now, const HostPins& pins);
    uint32_t address() const { return addr_; }
    uint32_t write_data() const { return data_; }

private:
    static constexpr uint64_t PATIENCE = 10000;  // clock edges of the chip after which an access is unanswered

    void issue();
    void finish(uint32_t response);

    HostOp* ops_ = nullptr;
    uint32_t count_ = 0, next_ = 0;
    uint64_t start_ = 0, waited_ = 0;
    bool active_ = false;
    bool aw_valid_ = false, w_valid_ = false, ar_valid_ = false, b_ready_ = false, r_ready_ = false;
    uint32_t addr_ = 0, data_ = 0;
};

}  // namespace mla
