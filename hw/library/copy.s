; Strided copy of bytes in DRAM: `planes` planes of `lines` lines of `len` bytes, chunks of `chunk` lines. Two buffers.
.name copy
.signature operands: 12; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand y, 1
.operand len, 2
.operand lines, 3
.operand planes, 4
.operand x_line, 5        ; bytes from line to line
.operand x_plane, 6
.operand y_line, 7
.operand y_plane, 8
.operand chunk, 9
.operand sp, 10
.operand size, 11         ; bytes of a buffer: chunk * len

.reg plane, r1
.reg at, r2
.reg count, r3
.reg i, r4
.reg buf, r5
.reg t, r6
.reg u, r7
.reg two, r8

    add two, 2
    set load.len, $len
    set load.dram_y, $x_line
    set load.dst_y, $len
    set store.len, $len
    set store.dram_y, $y_line
    set store.src_y, $len
planes:
    add at, 0
chunks:
    sub count, $lines, at
    min count, count, $chunk
    and t, i, 1
    mul buf, t, $size
    add buf, buf, $sp
    blt i, two, free
    wait store:0
free:
    mul t, plane, $x_plane
    mul u, at, $x_line
    add t, t, u
    set load.dram, t, $x
    set load.dst, buf
    set load.y_count, count
    issue load, signal(store:0)
    mul t, plane, $y_plane
    mul u, at, $y_line
    add t, t, u
    set store.dram, t, $y
    set store.src, buf
    set store.y_count, count
    issue store, wait(load:0), signal(seq:0)
    add i, i, 1
    add at, at, count
    blt at, $lines, chunks
    add plane, plane, 1
    blt plane, $planes, planes
    min i, i, 2
    loop i, done
    wait store:0
done:
    halt
