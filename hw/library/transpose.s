; y = transpose of x, bytes: x has `rows` rows of `cols` bytes, y has `cols` rows of `rows` bytes.
;
; A step takes N columns of x over `chunk` rows: LOAD transposes tiles of N x N, the rows that are left over form a last
; tile of their own. Two buffers.
.name transpose
.signature operands: 8; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand y, 1
.operand rows, 2
.operand cols, 3
.operand chunk, 4         ; rows of a step, a multiple of N
.operand sp, 5            ; two buffers of N * chunk bytes
.operand size, 6
.operand log2_n, 7

.reg c0, r1
.reg at, r2               ; first row of the step
.reg wide, r3             ; columns of the step
.reg high, r4             ; rows of the step
.reg tiles, r5            ; whole tiles in it
.reg rest, r6             ; rows beyond them
.reg i, r7
.reg buf, r8
.reg t, r9
.reg u, r10
.reg two, r11

    add two, 2
    set load.word, transpose=1
    set load.dram_y, $cols
    mul t, $cols, %n
    set load.dram_z, t
    set load.dst_y, $chunk
    set load.dst_z, %n
    set store.src_y, $chunk
    set store.dram_y, $rows
columns:
    sub wide, $cols, c0
    min wide, wide, %n
    set load.len, wide
    set store.y_count, wide
    add at, 0
steps:
    sub high, $rows, at
    min high, high, $chunk
    and t, i, 1
    mul buf, t, $size
    add buf, buf, $sp
    blt i, two, free
    wait store:0
free:
    mul t, at, $cols
    add t, t, c0
    add t, t, $x
    set load.dram, t
    set load.dst, buf
    shr tiles, high, $log2_n
    shl u, tiles, $log2_n
    sub rest, high, u
    beq tiles, r0, left_over
    set load.y_count, %n
    set load.z_count, tiles
    beq rest, r0, last
    issue load
left_over:
    add t, u, buf
    set load.dst, t
    add t, at, u
    mul t, t, $cols
    add t, t, c0
    set load.dram, t, $x
    set load.y_count, rest
    set load.z_count, 1
last:
    issue load, signal(store:0)
    mul t, c0, $rows
    add t, t, at
    set store.dram, t, $y
    set store.src, buf
    set store.len, high
    issue store, wait(load:0), signal(seq:0)
    add i, i, 1
    add at, at, high
    blt at, $rows, steps
    add c0, c0, %n
    blt c0, $cols, columns
    min i, i, 2
    loop i, done
    wait store:0
done:
    halt
