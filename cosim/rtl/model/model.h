// The only simulated machine of this process, and the C interface for cosim/rtl/server.py.
#pragma once

#include <cstdint>

#include "dram.h"
#include "host.h"

namespace mla {

// Request of the Python code; main.cpp executes the request when the Python code waits for the next time.
struct Order {
    bool pending = false;
    uint64_t until = 0;         // stop at this cycle
    bool stop_on_irq = false;   // or when irq is high
    bool stop_on_host = false;  // or when all register accesses are complete
    uint64_t reset_cycles = 0;  // before the run, hold the reset for this number of cycles
};

// Clock of the chip: `num` of every `den` cycles, evenly distributed, are stalled. The chip does not see these cycles,
// while time passes for the DRAM.
struct Throttle {
    uint64_t num = 0, den = 1, sum = 0;

    bool stalls() {
        sum += num;
        if (sum < den) return false;
        sum -= den;
        return true;
    }

    // Number of stalled cycles before the next one that is not.
    uint64_t ahead() const {
        uint64_t count = 0;
        for (Throttle next = *this; next.stalls();) ++count;
        return count;
    }
};

struct Model {
    Dram* dram = nullptr;
    Host host;
    Order order;
    Throttle throttle;
    uint64_t cycle = 0;    // cycles since the reset was released, those that are stalled included
    uint64_t stalled = 0;  // stalled cycles since the reset was released
    bool irq = false;
    int watched_fd = -1;  // no client waits for this process once the other end is closed
    int parent = 0;
};

extern Model model;

// Ends the process if the client has ended.
void leave_if_orphaned();

// Wave recording; each function returns 0, or -1 if this binary was built without wave recording.
int waves_start(const char* path);
int waves_stop();
void waves_sample(uint64_t time);

}  // namespace mla
