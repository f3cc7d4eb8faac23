#include "host.h"

namespace mla {

void Host::begin(HostOp* ops, uint32_t count, uint64_t start) {
    ops_ = ops;
    count_ = count;
    next_ = 0;
    start_ = start;
    active_ = aw_valid_ = w_valid_ = ar_valid_ = b_ready_ = r_ready_ = false;
}

uint32_t Host::step(uint64_t now, const HostPins& pins) {
    if (active_) {
        if (pins.aw_ready) aw_valid_ = false;
        if (pins.w_ready) w_valid_ = false;
        if (pins.ar_ready) ar_valid_ = false;
        if (b_ready_ && pins.b_valid) {
            finish(pins.b_response);
        } else if (r_ready_ && pins.r_valid) {
            ops_[next_].data = pins.r_data;
            finish(pins.r_response);
        } else if (++waited_ > PATIENCE) {
            for (uint32_t i = next_; i < count_; ++i) ops_[i].response = NO_ANSWER;
            finish(NO_ANSWER);
            next_ = count_;
        }
    }
    if (!active_ && due(now)) issue();
    return aw_valid_ | w_valid_ << 1 | b_ready_ << 2 | ar_valid_ << 3 | r_ready_ << 4 | active_ << 5;
}

void Host::issue() {
    const HostOp& op = ops_[next_];
    active_ = true;
    waited_ = 0;
    addr_ = op.addr;
    data_ = op.data;
    aw_valid_ = w_valid_ = b_ready_ = op.write;
    ar_valid_ = r_ready_ = !op.write;
}

void Host::finish(uint32_t response) {
    ops_[next_].response = response;
    ++next_;
    active_ = aw_valid_ = w_valid_ = ar_valid_ = b_ready_ = r_ready_ = false;
}

}  // namespace mla
