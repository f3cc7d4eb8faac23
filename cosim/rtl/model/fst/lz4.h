// The two functions of LZ4 that Verilator's wave writer calls, so that no system package is needed for waves.
// Greedy compressor for the LZ4 block format, whose sequences consist of a token {number of literals, match length -
// 4}, the literals and a 16-bit distance.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

namespace lz4_detail {

constexpr int MIN_MATCH = 4;
constexpr int END_LITERALS = 5;    // a block ends with at least this number of literals
constexpr int LAST_MATCH_START = 12;  // minimum distance of the start of a match from the end
constexpr int MAX_DISTANCE = 65535;
constexpr int HASH_BITS = 14;

inline uint32_t word_at(const char* p) {
    uint32_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

inline char* put_length(char* out, int rest) {
    for (; rest >= 255; rest -= 255) *out++ = static_cast<char>(255);
    *out++ = static_cast<char>(rest);
    return out;
}

// Writes one sequence; a match length of 0 indicates the last sequence, which consists only of literals.
inline char* put_sequence(char* out, const char* literals, int count, int distance, int match) {
    const int extra = match ? match - MIN_MATCH : 0;
    *out++ = static_cast<char>((count < 15 ? count : 15) << 4 | (extra < 15 ? extra : 15));
    if (count >= 15) out = put_length(out, count - 15);
    std::memcpy(out, literals, count);
    out += count;
    if (match) {
        *out++ = static_cast<char>(distance & 255);
        *out++ = static_cast<char>(distance >> 8);
        if (extra >= 15) out = put_length(out, extra - 15);
    }
    return out;
}

}  // namespace lz4_detail

// Returns the compressed size; `capacity` must be at least LZ4_compressBound(size).
inline int LZ4_compress_default(const char* source, char* target, int size, int capacity) {
    using namespace lz4_detail;
    if (capacity < LZ4_compressBound(size)) return 0;
    std::vector<int> seen(1 << HASH_BITS, -1);
    char* out = target;
    int anchor = 0;
    for (int at = 0; at < size - LAST_MATCH_START;) {
        const uint32_t word = word_at(source + at);
        int& slot = seen[(word * 2654435761u) >> (32 - HASH_BITS)];
        const int before = slot;
        slot = at;
        if (before < 0 || at - before > MAX_DISTANCE || word_at(source + before) != word) {
            ++at;
            continue;
        }
        int match = MIN_MATCH;
        while (at + match < size - END_LITERALS && source[before + match] == source[at + match]) ++match;
        out = put_sequence(out, source + anchor, at - anchor, at - before, match);
        at += match;
        anchor = at;
    }
    out = put_sequence(out, source + anchor, size - anchor, 0, 0);
    return static_cast<int>(out - target);
}
