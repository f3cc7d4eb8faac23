// Main loop: cocotb's simulation phases, between which clock cycles are executed without Python.
//
// A cocotb test places an order (model.h) and waits; this file executes the order without calling Python. Then time
// advances and the test resumes. Unlike in cocotb's main program, the clock needs no VPI call and no timer.
#include <verilated.h>
#include <verilated_vpi.h>

#include <algorithm>
#include <memory>

#include "Vtop.h"
#include "model.h"
#if VM_TRACE
#include <verilated_fst_c.h>
#endif

extern "C" void vlog_startup_routines_bootstrap();

namespace {

constexpr uint64_t LIVENESS_CYCLES = 1 << 16;  // number of cycles between checks whether the client exists

VerilatedContext* context;
Vtop* top;
uint64_t now = 0;  // simulated time in half clock cycles
#if VM_TRACE
std::unique_ptr<VerilatedFstC> waves;
#endif

void half_cycle(bool clk) {
    top->clk = clk;
    context->time(now);
    top->eval();
#if VM_TRACE
    if (waves) waves->dump(now);
#endif
    ++now;
}

void clock_cycle() {
    if (mla::model.throttle.stalls()) {
        mla::model.dram->stall(mla::model.cycle);
        ++mla::model.cycle;
        ++mla::model.stalled;
        return;
    }
    half_cycle(true);
    half_cycle(false);
    ++mla::model.cycle;
    mla::model.irq = top->irq;
}

void hold_reset(uint64_t cycles) {
    top->rst = 1;
    for (uint64_t i = 0; i < cycles; ++i) clock_cycle();
    mla::model.dram->reset();  // at the end, because a busy chip may have begun a burst before
    top->rst = 0;
    clock_cycle();  // the reset reaches the chip through one register
    mla::model.cycle = mla::model.stalled = mla::model.throttle.sum = 0;
}

void execute(const mla::Order& order) {
    mla::Model& model = mla::model;
    if (order.reset_cycles) hold_reset(order.reset_cycles);
    uint64_t look = model.cycle + LIVENESS_CYCLES;
    while (model.cycle < order.until && !(order.stop_on_irq && model.irq) &&
           !(order.stop_on_host && model.host.done())) {
        top->poke = model.host.due(model.cycle);
        clock_cycle();
        if (model.cycle == look) {
            mla::leave_if_orphaned();
            look += LIVENESS_CYCLES;
        }
        if (context->gotFinish()) break;
    }
}

void settle() {
    do {
        top->eval();
        VerilatedVpi::clearEvalNeeded();
        VerilatedVpi::doInertialPuts();
        while (VerilatedVpi::callValueCbs()) {}
        VerilatedVpi::callCbs(cbReadWriteSynch);
        VerilatedVpi::doInertialPuts();
        while (VerilatedVpi::callValueCbs()) {}
    } while (VerilatedVpi::evalNeeded());
    VerilatedVpi::callCbs(cbReadOnlySynch);
}

// Returns false if cocotb no longer waits for any event.
bool advance_time() {
    const uint64_t next = VerilatedVpi::cbNextDeadline();
    if (next == ~0ULL) return false;
    now = std::max(now, next);
    context->time(now);
    VerilatedVpi::callCbs(cbNextSimTime);
    VerilatedVpi::callTimedCbs();
    return true;
}

}  // namespace

namespace mla {

int waves_start(const char* path) {
#if VM_TRACE
    waves_stop();
    waves = std::make_unique<VerilatedFstC>();
    top->trace(waves.get(), 99);
    waves->open(path);
    return waves->isOpen() ? 0 : -2;
#else
    (void)path;
    return -1;
#endif
}

int waves_stop() {
#if VM_TRACE
    if (waves) waves->close();
    waves.reset();
    return 0;
#else
    return -1;
#endif
}

}  // namespace mla

int main(int argc, char** argv) {
    auto owned_context = std::make_unique<VerilatedContext>();
    context = owned_context.get();
    Verilated::threadContextp(context);
    context->commandArgs(argc, argv);
    context->fatalOnVpiError(false);
#if VM_TRACE
    context->traceEverOn(true);
#endif
    auto owned_top = std::make_unique<Vtop>(context);
    top = owned_top.get();
    vlog_startup_routines_bootstrap();
    VerilatedVpi::callCbs(cbStartOfSimulation);
    while (!context->gotFinish()) {
        settle();
        if (mla::model.order.pending) {
            const mla::Order order = mla::model.order;
            mla::model.order = {};
            execute(order);
        }
        if (!advance_time()) break;
    }
    mla::waves_stop();
    top->final();
    VerilatedVpi::callCbs(cbEndOfSimulation);
    return 0;
}
