// The simulated machine of this process, of which there is one, and the C interface for cosim/rtl/server.py.
#pragma once

#include <cstdint>

#include "dram.h"
#include "host.h"

namespace mla {

// Request of the Python code; main.cpp executes it when the Python code next waits.
struct Order {
    bool pending = false;
    uint64_t until = 0;         // stop at this cycle
    bool stop_on_irq = false;   // or once irq is high
    bool stop_on_host = false;  // or once the list of register accesses is done
    uint64_t reset_cycles = 0;  // first hold the reset for this number of cycles
};

struct Model {
    Dram* dram = nullptr;
    Host host;
    Order order;
    uint64_t cycle = 0;  // rising clock edges since the reset was released
    bool irq = false;
    int watched_fd = -1;  // when its other end closes, no client waits for this process
    int parent = 0;
};

extern Model model;

// Ends the process if the client has ended.
void leave_if_orphaned();

// Wave recording; each function returns 0, or -1 if this binary was built without it.
int waves_start(const char* path);
int waves_stop();
void waves_sample(uint64_t time);

}  // namespace mla
