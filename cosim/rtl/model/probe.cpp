// Recording of the events that mla_probe.sv observes, stored until Python reads them.
#include <vector>

#include "model.h"

namespace {

constexpr uint64_t WINDOW = 256;            // cycles over which beats are counted together
constexpr size_t MOST_EVENTS = 1 << 26;     // one gigabyte; later events are not recorded
constexpr unsigned EVENTS = 0x3ff, READ = 0x400, WRITTEN = 0x800;

struct Event {
    uint64_t cycle;
    uint32_t pulses, tags;
};
struct Beats {
    uint32_t read, written;
};

bool recording = false;
std::vector<Event> events;
std::vector<Beats> beats;

}  // namespace

extern "C" {

void mla_probe_step(unsigned pulses, unsigned tags) {
    if (!recording) return;
    const uint64_t cycle = mla::model.cycle;
    if ((pulses & EVENTS) && events.size() < MOST_EVENTS) events.push_back({cycle, pulses & EVENTS, tags});
    if (pulses & (READ | WRITTEN)) {
        if (beats.size() <= cycle / WINDOW) beats.resize(cycle / WINDOW + 1);
        beats[cycle / WINDOW].read += (pulses & READ) != 0;
        beats[cycle / WINDOW].written += (pulses & WRITTEN) != 0;
    }
}

// Clears the recording, then starts or stops recording.
void mla_probe_record(int on) {
    events.clear();
    beats.clear();
    recording = on != 0;
}

uint64_t mla_probe_events(void** data) {
    *data = events.data();
    return events.size() * sizeof(Event);
}

uint64_t mla_probe_beats(void** data) {
    *data = beats.data();
    return beats.size() * sizeof(Beats);
}

}  // extern "C"
