// Model of a DRAM with an AXI4 slave port.
//
// Timing: the first beat of a read is transferred `latency` cycles after its address, and the other beats follow as
// bandwidth permits; requests are pipelined and answered in order. Reads and writes share `bytes_per_cycle` (num/den),
// which a token bucket implements that accumulates no tokens while idle. A write is answered 10 cycles after its last
// beat. If both directions request the same beat, they take turns. A read beat uses bandwidth when it enters the output
// register, a write beat when it is accepted.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace mla {

enum Response : uint8_t { OKAY = 0, SLVERR = 2, DECERR = 3 };

// Outputs of the chip at one clock edge; *_fire is set if valid and ready are set.
struct DramPins {
    bool ar_fire, aw_fire, w_valid, w_fire, w_last, r_ready, b_ready;
    uint32_t ar_addr, aw_addr;
    uint32_t ar_attr, aw_attr;  // {id[1:0], len[7:0], size[2:0], burst[1:0]}
    uint32_t w_strobe;
    const uint8_t* w_data;
};

// Beats in the selected directions that overlap addresses start <= a < stop are answered with `response`.
struct Fault {
    uint64_t start, stop;
    uint32_t response, on_read, on_write;
};

class Dram {
public:
    Dram(uint8_t* bytes, uint64_t size, uint32_t row) : bytes_{bytes}, size_{size}, row_{row} {}

    void set_timing(uint32_t latency, uint64_t num, uint64_t den);
    void set_faults(const Fault* faults, uint32_t count) { faults_.assign(faults, faults + count); }
    // Discards all transfers in flight and any violation; contents, timing and faults are preserved.
    void reset();
    // Executes one clock edge; `stalls` cycles are stalled before the next one. Returns the control outputs in the packing
    // that mla_top.sv expects.
    uint32_t step(uint64_t now, const DramPins& pins, uint64_t stalls);
    // Lets a cycle pass in which the clock of the chip is stalled: bandwidth accumulates for at most one waiting beat.
    void stall(uint64_t now);
    const uint8_t* read_data() const { return beat_.data; }

    uint64_t read_beats = 0, write_beats = 0, requests = 0;
    std::string violation;  // first AXI violation of the chip; empty if there is none

private:
    struct Burst {
        uint64_t due;
        uint64_t addr;
        uint32_t left;
        uint8_t id, response;
    };
    struct WriteBeat {
        uint64_t at;
        uint32_t strobe;
        bool last;
        uint8_t data[32];
    };
    struct Answer {
        uint64_t due;
        uint8_t id, response;
    };
    struct ReadBeat {
        bool valid = false, last = false;
        uint8_t id = 0, response = 0;
        uint8_t data[32] = {};
    };

    void accept(uint64_t now, const DramPins& pins);
    Burst burst(uint64_t due, uint64_t addr, uint32_t attr, const char* kind);
    void serve(uint64_t now, const DramPins& pins, uint64_t stalls);
    void load_beat();
    void join_writes();
    void store(Burst& burst, const WriteBeat& beat);
    uint8_t response_at(uint64_t addr, bool write) const;
    int64_t idle_tokens() const { return cost_ > num_ ? cost_ - num_ : 0; }
    uint32_t outputs() const;

    uint8_t* bytes_;
    uint64_t size_;
    uint32_t row_;
    uint32_t latency_ = 100;
    int64_t num_ = 1, cost_ = 1, tokens_ = 0;  // num_ tokens are added per cycle, and a beat costs cost_ tokens
    bool write_ready_ = false, read_turn_ = false, writing_ = false;
    std::deque<Burst> reads_, writes_;
    std::deque<WriteBeat> beats_;
    std::deque<Answer> answers_;
    ReadBeat beat_;
    bool answer_valid_ = false;
    Answer answer_{};
    std::vector<Fault> faults_;
};

}  // namespace mla
