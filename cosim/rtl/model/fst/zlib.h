// The part of zlib that Verilator's wave writer calls, so that no system package is needed for waves.
// Writes stored (uncompressed) blocks, which every reader accepts; the wave writer keeps the original data if they are
// smaller.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

using Bytef = unsigned char;
using uLong = unsigned long;
using uLongf = unsigned long;
constexpr int Z_OK = 0;
constexpr int Z_BUF_ERROR = -5;

constexpr uLong ZLIB_STORED_MAX = 65535;

inline uLong compressBound(uLong size) { return size + 5 * (size / ZLIB_STORED_MAX + 1) + 6; }

inline int compress2(Bytef* target, uLongf* target_size, const Bytef* source, uLong size, int) {
    if (*target_size < compressBound(size)) return Z_BUF_ERROR;
    Bytef* out = target;
    *out++ = 0x78;
    *out++ = 0x01;
    uint32_t low = 1, high = 0;  // Adler-32 of the source
    for (uLong i = 0; i < size; ++i) {
        low = (low + source[i]) % 65521;
        high = (high + low) % 65521;
    }
    uLong done = 0;
    do {
        const uLong count = size - done < ZLIB_STORED_MAX ? size - done : ZLIB_STORED_MAX;
        *out++ = done + count == size;  // set in the last block
        for (const uLong field : {count, ~count}) {
            *out++ = field & 255;
            *out++ = field >> 8 & 255;
        }
        std::memcpy(out, source + done, count);
        out += count;
        done += count;
    } while (done < size);
    const uint32_t sum = high << 16 | low;
    for (int shift = 24; shift >= 0; shift -= 8) *out++ = sum >> shift & 255;
    *target_size = static_cast<uLongf>(out - target);
    return Z_OK;
}
