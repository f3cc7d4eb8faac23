// C interface for cosim/rtl/server.py (ctypes), and the DPI functions that mla_top.sv calls.
#include <poll.h>
#include <svdpi.h>
#include <unistd.h>
#include <verilated.h>
#include <verilated_cov.h>
#include <verilated_syms.h>

#include <cstring>
#include <string>

#include "model.h"

namespace mla {

Model model;

void leave_if_orphaned() {
    pollfd watched{model.watched_fd, POLLRDHUP, 0};
    const bool closed = poll(&watched, 1, 0) > 0 && (watched.revents & (POLLRDHUP | POLLHUP | POLLERR));
    if (closed || getppid() != model.parent) _exit(0);
}

}  // namespace mla

using mla::model;

static bool ends_in(const std::string& name, const std::string& tail) {
    return name.size() >= tail.size() && name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
}

extern "C" {

unsigned mla_dram_step(unsigned ctl, unsigned ar_addr, unsigned ar_attr, unsigned aw_addr, unsigned aw_attr,
                       unsigned strobe, const svBitVecVal* wdata, svBitVecVal* rdata, unsigned row) {
    mla::DramPins pins;
    pins.ar_fire = ctl & 1;
    pins.aw_fire = ctl & 2;
    pins.w_valid = ctl & 4;
    pins.w_fire = ctl & 8;
    pins.w_last = ctl & 16;
    pins.r_ready = ctl & 32;
    pins.b_ready = ctl & 64;
    pins.ar_addr = ar_addr;
    pins.aw_addr = aw_addr;
    pins.ar_attr = ar_attr;
    pins.aw_attr = aw_attr;
    pins.w_strobe = strobe;
    pins.w_data = reinterpret_cast<const uint8_t*>(wdata);
    const unsigned out = model.dram->step(model.cycle, pins, model.throttle.ahead());
    std::memcpy(rdata, model.dram->read_data(), row);
    return out;
}

unsigned mla_host_step(unsigned ctl, unsigned r_data, unsigned* addr, unsigned* data) {
    mla::HostPins pins;
    pins.aw_ready = ctl & 1;
    pins.w_ready = ctl & 2;
    pins.b_valid = ctl & 4;
    pins.ar_ready = ctl & 8;
    pins.r_valid = ctl & 16;
    pins.b_response = ctl >> 5 & 3;
    pins.r_response = ctl >> 7 & 3;
    pins.r_data = r_data;
    const unsigned out = model.host.step(model.cycle, pins);
    *addr = model.host.address();
    *data = model.host.write_data();
    return out;
}

void mla_open(uint8_t* bytes, uint64_t size, uint32_t row, int watched_fd) {
    model.dram = new mla::Dram(bytes, size, row);
    model.watched_fd = watched_fd;
    model.parent = getppid();
}

void mla_adopted() { model.parent = getppid(); }

void mla_order_reset(uint64_t cycles) { model.order = {true, 0, false, false, cycles}; }

void mla_order_run(uint64_t cycles, int stop_on_irq) {
    model.order = {true, model.cycle + cycles, stop_on_irq != 0, false, 0};
}

void mla_order_host(mla::HostOp* ops, uint32_t count, uint64_t delay_cycles) {
    model.host.begin(ops, count, model.cycle + delay_cycles);
    model.order = {true, UINT64_MAX, false, true, 0};
}

uint64_t mla_cycle() { return model.cycle; }
uint64_t mla_stalled() { return model.stalled; }
void mla_throttle(uint64_t num, uint64_t den) { model.throttle = {num, den, 0}; }
int mla_irq() { return model.irq; }
void mla_dram_timing(uint32_t latency, uint64_t num, uint64_t den) { model.dram->set_timing(latency, num, den); }
void mla_dram_faults(const mla::Fault* faults, uint32_t count) { model.dram->set_faults(faults, count); }
const char* mla_dram_violation() { return model.dram->violation.c_str(); }

void mla_dram_traffic(uint64_t* out) {
    out[0] = model.dram->read_beats;
    out[1] = model.dram->write_beats;
    out[2] = model.dram->requests;
}

// Finds the storage array `mem` of the instance whose path ends in `.suffix` or, if the memory has a wrapper, in
// `.suffix.mem`. Returns the number of matching instances; *bytes is the size of the storage of the last one in bytes.
int mla_memory(const char* suffix, void** data, uint64_t* bytes) {
    const std::string bare = std::string{"."} + suffix, wrapped = bare + ".mem";
    int found = 0;
    for (const auto& entry : *Verilated::scopeNameMap()) {
        if (!ends_in(entry.first, bare) && !ends_in(entry.first, wrapped)) continue;
        const VerilatedVar* var = entry.second->varFind("mem");
        if (!var) continue;
        *data = var->datap();
        *bytes = var->totalSize();
        ++found;
    }
    return found;
}

int mla_waves_start(const char* path) { return mla::waves_start(path); }
int mla_waves_stop() { return mla::waves_stop(); }

int mla_coverage_write(const char* path) {
#if VM_COVERAGE
    Verilated::threadContextp()->coveragep()->write(path);
    return 0;
#else
    (void)path;
    return -1;
#endif
}

}  // extern "C"
