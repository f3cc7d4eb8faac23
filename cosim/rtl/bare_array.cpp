// Drives the baseline design bare_array.v with new values in every cycle and prints its speed in kHz.
#include <verilated.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "Vbare.h"

namespace {

// xorshift32, whose cost is negligible compared with that of the array.
uint32_t noise() {
    static uint32_t state = 1;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

void cycle(Vbare& top, uint64_t number) {
    for (int i = 0; i < 4; ++i) {
        top.a[i] = noise();
        top.w[i] = noise();
    }
    top.swap = number % 16 == 15;
    top.clk = 1;
    top.eval();
    top.clk = 0;
    top.eval();
}

}  // namespace

int main(int, char** argv) {
    const double wanted = std::atof(argv[1]);
    VerilatedContext context;
    Vbare top{&context};
    top.load = 1;
    uint64_t cycles = 0;
    double seconds = 0;
    const auto start = std::chrono::steady_clock::now();
    while (seconds < wanted) {
        for (int i = 0; i < 4096; ++i) cycle(top, cycles++);
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    std::printf("%.1f\n", cycles / seconds / 1e3);
    return 0;
}
