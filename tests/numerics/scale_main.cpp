// Drives the scaling stage with one operation per cycle and compares it with 128-bit arithmetic.
// Arguments: bits of x, latency, random operations for each rounding mode, seed. Prints the number of operations
// of each mode, and the number of operations of the even mode whose result the rounding to 24 bits changed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include "Vscale_stage.h"
#include "verilated.h"

using wide = __int128;
enum Mode { DOUBLE, SINGLE, EVEN, AWAY };

struct Operation {
    int64_t x, m;
    int e, ls, mode, raw;
};

static uint64_t state;
static long changed;
static uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1DULL;
}

static int64_t sign_extend(uint64_t value, int bits) { return int64_t(value << (64 - bits)) >> (64 - bits); }
static wide clamp(wide v, wide low, wide high) { return v < low ? low : v > high ? high : v; }
static wide saturate(wide v) { return clamp(v, -(wide(1) << 31), (wide(1) << 31) - 1); }
static wide half_up(wide p, int s) { return s ? (p + (wide(1) << (s - 1))) >> s : p; }
static wide half_away(wide p, int s) { return p < 0 ? -half_up(-p, s) : half_up(p, s); }
static wide half_even(wide p, int s) {
    if (s == 0) return p;
    wide below = p >> s, twice = 2 * (p - (below << s)), one = wide(1) << s;
    return below + (twice > one || (twice == one && (below & 1)));
}

// The multiple of 2**t next to p, the even one of two: by distance, on the magnitude.
static wide nearest(wide p, int t) {
    wide magnitude = p < 0 ? -p : p, unit = wide(1) << t, less = magnitude / unit * unit, more = less + unit;
    wide above = more - magnitude, below = magnitude - less;
    bool up = above < below || (above == below && less / unit % 2);
    wide chosen = up ? more : less;
    return p < 0 ? -chosen : chosen;
}

static wide even(wide p, int s) {
    int t = 0;
    while (t < s && (p < 0 ? -p : p) >= wide(1) << (24 + t)) ++t;
    return nearest(nearest(p, t), s) / (wide(1) << s);
}

static int32_t reference(const Operation& o) {
    wide p = wide(o.x) * o.m;
    if (o.raw) return int32_t(uint32_t(p));
    int s = int(clamp(31 - o.ls - o.e, 0, 63));
    switch (o.mode) {
        case DOUBLE:
            if (o.e >= 0) return int32_t(saturate(half_up(p, s)));
            return int32_t(half_away(saturate(half_up(p, 31 - o.ls)), int(clamp(-o.e, 0, 31))));
        case SINGLE: return int32_t(saturate(half_up(p, s)));
        case EVEN:
            changed += even(p, s) != half_even(p, s);
            return int32_t(saturate(even(p, s)));
        default: return int32_t(saturate(half_away(p, s)));
    }
}

static Vscale_stage* dut;
static std::deque<Operation> flight;
static int latency, x_bits;

static bool step(const Operation& o) {
    dut->x = uint32_t(o.x) & uint32_t((uint64_t(1) << x_bits) - 1);
    dut->mult = uint32_t(o.m);
    dut->exponent = uint8_t(o.e);
    dut->ls = o.ls;
    dut->rounding = o.mode;
    dut->raw = o.raw;
    flight.push_back(o);
    dut->clk = 0;
    dut->eval();
    dut->clk = 1;
    dut->eval();
    if (int(flight.size()) < latency) return true;
    Operation old = flight.front();
    flight.pop_front();
    int32_t want = reference(old), got = int32_t(dut->o);
    if (want == got) return true;
    std::printf("x %lld m %lld e %d ls %d mode %d raw %d: %d instead of %d\n", (long long)old.x, (long long)old.m, old.e, old.ls,
                old.mode, old.raw, got, want);
    return false;
}

static std::vector<int64_t> corners(int bits) {
    int64_t high = (int64_t(1) << (bits - 1)) - 1;
    std::vector<int64_t> values = {-high - 1, -high, -high + 1, -3, -2, -1, 0, 1, 2, 3, high - 1, high};
    for (int k : {bits / 2, bits - 2})
        for (int64_t d : {-1, 0, 1}) values.insert(values.end(), {(int64_t(1) << k) + d, -(int64_t(1) << k) + d});
    return values;
}

// A value of random magnitude, now and then just beside a multiple of a power of two, where ties are.
static int64_t any(int bits) {
    int64_t value = sign_extend(next(), bits) >> (next() % bits);
    if (next() % 4 == 0) value = (value >> 8 << 8) + int64_t(next() % 3) - 1;
    return sign_extend(uint64_t(value), bits);
}

// A number of `bits` bits: a tie when only its first `kept` ones stay, or moved from that by 2**-26 to 2**-20 of itself,
// now and then by exactly what rounding to 24 bits can move it.
static wide near_tie(int bits, int kept) {
    wide value = kept ? (wide(1) << kept) | wide(next() >> (64 - kept)) : 1, one = 1;
    value = (value << (bits - kept)) | (one << (bits - kept - 1));
    value &= (one << bits) - 1;
    if (kept) value |= one << (bits - 1);
    int place = bits - (next() % 2 ? 25 : 20 + int(next() % 7));
    if (place >= 0) value += (one << place) * (int(next() % 3) - 1);
    return value + (next() % 4 ? 0 : int(next() % 3) - 1);
}

// An operation of the even mode beside a tie, of a result of up to 23 bits.
static Operation beside_tie() {
    int kept = next() % 24, more = next() % 31, bits;
    int64_t x, m;
    if (next() % 2) {  // any product there is, as one factor is a power of two
        more %= x_bits - 1;
        m = int64_t(near_tie(31, kept)), x = int64_t(1) << more, bits = 31 + more;
        if (next() % 2 && x_bits == 32) std::swap(x, m);
    } else {  // as close as the multipliers of 31 or of 24 bits allow
        int length = 1 + next() % (x_bits - 1);
        x = (int64_t(1) << (length - 1)) | int64_t(next() >> (64 - length) >> 1), bits = 30 + length;
        m = int64_t(near_tie(bits, kept) / x) + int64_t(next() % 3) - 1;
        if (next() % 2) m &= ~int64_t(127);
    }
    if (m >> 31) m = (int64_t(1) << 31) - 1;
    return {next() % 2 ? x : -x, m, 31 - (bits - kept), 0, EVEN, 0};
}

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    x_bits = std::atoi(argv[1]);
    latency = std::atoi(argv[2]);
    long count = std::atol(argv[3]);
    state = std::strtoull(argv[4], nullptr, 10) * 2 + 1;
    dut = new Vscale_stage;
    dut->rst = 0;
    for (int mode = 0; mode < 4; ++mode) {
        long done = 0;
        for (int64_t x : corners(x_bits))
            for (int64_t m : corners(32))
                for (int e = -128; e < 128; ++e)
                    for (int ls : {0, 1, 20, 30}) {
                        if (!step({x, m, e, ls, mode, 0})) return 1;
                        ++done;
                    }
        for (long i = 0; i < count; ++i) {
            int e = next() % 4 ? int(next() % 32) - 20 : int(next() % 256) - 128;
            int ls = next() % 2 ? 0 : int(next() % 31);
            bool beside = mode == EVEN && next() % 2;
            if (!step(beside ? beside_tie() : Operation{any(x_bits), any(32), e, ls, mode, next() % 16 == 0})) return 1;
            ++done;
        }
        std::printf("%ld\n", done);
    }
    for (int i = 0; i < latency; ++i)
        if (!step({0, 0, 0, 0, 0, 0})) return 1;
    std::printf("%ld\n", changed);
    return 0;
}
