#include "dram.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace mla {

namespace {
constexpr uint64_t WRITE_ANSWER_CYCLES = 10;
constexpr uint64_t PAGE = 4096;            // an AXI burst must not cross a multiple of this
constexpr size_t EARLY_BEATS = 64;         // maximum number of write beats accepted before their address
}  // namespace

void Dram::set_timing(uint32_t latency, uint64_t num, uint64_t den) {
    latency_ = latency;
    num_ = static_cast<int64_t>(num);
    cost_ = static_cast<int64_t>(den) * row_;
    tokens_ = std::min(tokens_, idle_tokens());
}

void Dram::reset() {
    reads_.clear();
    writes_.clear();
    beats_.clear();
    answers_.clear();
    beat_ = ReadBeat{};
    answer_valid_ = write_ready_ = read_turn_ = writing_ = false;
    tokens_ = idle_tokens();
    violation.clear();
}

uint32_t Dram::step(uint64_t now, const DramPins& pins, uint64_t stalls) {
    accept(now, pins);
    join_writes();
    serve(now, pins, stalls);
    return outputs();
}

void Dram::stall(uint64_t now) {
    const bool wants = writing_ || (!reads_.empty() && now >= reads_.front().due);
    tokens_ = std::min(tokens_ + num_, wants ? std::max(cost_, tokens_) : idle_tokens());
}

void Dram::accept(uint64_t now, const DramPins& pins) {
    if (beat_.valid && pins.r_ready) beat_.valid = false;
    if (answer_valid_ && pins.b_ready) answer_valid_ = false;
    // A beat loaded at edge e is transferred at edge e + 1, hence the -1.
    if (pins.ar_fire) reads_.push_back(burst(now + latency_ - 1, pins.ar_addr, pins.ar_attr, "read"));
    if (pins.aw_fire) writes_.push_back(burst(now, pins.aw_addr, pins.aw_attr, "write"));
    if (pins.w_fire) {
        WriteBeat beat{now, pins.w_strobe, pins.w_last, {}};
        std::memcpy(beat.data, pins.w_data, row_);
        beats_.push_back(beat);
        ++write_beats;
    }
}

Dram::Burst Dram::burst(uint64_t due, uint64_t addr, uint32_t attr, const char* kind) {
    const uint32_t id = attr >> 13, beats = ((attr >> 5) & 0xff) + 1, size = (attr >> 2) & 7, type = attr & 3;
    const uint64_t first = addr & ~static_cast<uint64_t>(row_ - 1);
    const char* fault = type != 1                                           ? "is not of type INCR"
                        : (1u << size) != row_                              ? "is not of full bus width"
                        : first / PAGE != (first + beats * row_ - 1) / PAGE ? "crosses a 4 KiB boundary"
                                                                            : nullptr;
    if (fault && violation.empty()) {
        char text[128];
        std::snprintf(text, sizeof text, "a %s burst of %u beats at 0x%llx %s", kind, beats,
                      static_cast<unsigned long long>(addr), fault);
        violation = text;
    }
    ++requests;
    return {due, first, beats, static_cast<uint8_t>(id), OKAY};
}

void Dram::serve(uint64_t now, const DramPins& pins, uint64_t stalls) {
    tokens_ += num_ - (pins.w_fire ? cost_ : 0);
    writing_ = pins.w_valid;
    const bool wants = !reads_.empty() && now >= reads_.front().due && !beat_.valid;
    const bool read = wants && tokens_ >= cost_;
    if (read) {
        load_beat();
        tokens_ -= cost_;
        read_turn_ = false;
    } else if (wants && pins.w_fire) {
        read_turn_ = true;
    }
    // Unused bandwidth is lost, except for the fraction that remains after the beat that has just been served.
    if (read || pins.w_fire) {
        tokens_ = std::min(tokens_, cost_ - 1);
    } else if (!wants && !(pins.w_valid && !pins.w_fire)) {
        tokens_ = std::min(tokens_, idle_tokens());
    }
    write_ready_ = tokens_ + num_ * static_cast<int64_t>(1 + stalls) >= cost_ && !read_turn_ && beats_.size() < EARLY_BEATS;
    if (!answer_valid_ && !answers_.empty() && now >= answers_.front().due) {
        answer_ = answers_.front();
        answers_.pop_front();
        answer_valid_ = true;
    }
}

void Dram::load_beat() {
    Burst& burst = reads_.front();
    beat_.valid = true;
    beat_.id = burst.id;
    beat_.last = burst.left == 1;
    beat_.response = response_at(burst.addr, false);
    if (beat_.response == OKAY) {
        std::memcpy(beat_.data, bytes_ + burst.addr, row_);
    } else {
        std::memset(beat_.data, 0, row_);
    }
    burst.addr += row_;
    ++read_beats;
    if (--burst.left == 0) reads_.pop_front();
}

void Dram::join_writes() {
    while (!writes_.empty() && !beats_.empty()) {
        Burst& burst = writes_.front();
        const WriteBeat& beat = beats_.front();
        store(burst, beat);
        if (beat.last != (burst.left == 0) && violation.empty()) {
            violation = "wlast does not match the length of its write burst";
        }
        if (burst.left == 0) {
            const uint64_t done = std::max(beat.at, burst.due);
            answers_.push_back({done + WRITE_ANSWER_CYCLES - 1, burst.id, burst.response});
            writes_.pop_front();
        }
        beats_.pop_front();
    }
}

void Dram::store(Burst& burst, const WriteBeat& beat) {
    const uint8_t response = response_at(burst.addr, true);
    burst.response = std::max(burst.response, response);
    if (response == OKAY) {
        for (uint32_t i = 0; i < row_; ++i) {
            if (beat.strobe >> i & 1) bytes_[burst.addr + i] = beat.data[i];
        }
    }
    burst.addr += row_;
    --burst.left;
}

uint8_t Dram::response_at(uint64_t addr, bool write) const {
    if (addr + row_ > size_) return DECERR;
    for (const Fault& fault : faults_) {
        const bool meant = write ? fault.on_write : fault.on_read;
        if (meant && addr + row_ > fault.start && addr < fault.stop) return static_cast<uint8_t>(fault.response);
    }
    return OKAY;
}

uint32_t Dram::outputs() const {
    const bool busy = beat_.valid || answer_valid_ || !reads_.empty() || !writes_.empty() || !beats_.empty() ||
                      !answers_.empty() || tokens_ < idle_tokens();
    return beat_.valid | beat_.last << 1 | beat_.response << 2 | beat_.id << 4 | answer_valid_ << 6 |
           answer_.response << 7 | answer_.id << 9 | write_ready_ << 11 | busy << 12;
}

}  // namespace mla
