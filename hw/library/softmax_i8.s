; Softmax over the rows of a matrix, int8: y = round(256 * exp(beta * (x - max)) / sum) - 128, as TFLite scales it.
;
; Five passes of FUSE over a chunk of rows, each ordered after the one before by a token to itself. An exponential E has
; up to 29 bits, in two tables of 15:
;   1. maximum of a row                                 -> accumulator row, lane 0
;   2. low bits of E: table 0 of x - max                -> scratchpad, int16
;   3. table 1 of x - max, times 2^15, plus the low bits -> accumulator, E
;   4. sum of a row's E and its reciprocal              -> accumulator row, lanes 1 and 2 (multiplier, exponent)
;   5. E times reciprocal, requantized                  -> scratchpad, int8
; x and y have two buffers; what FUSE alone uses has one, since it reads and writes in order.
.name softmax_i8
.signature operands: 13; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand y, 1
.operand rows, 2
.operand cols, 3
.operand chunk, 4         ; rows of a chunk; its accumulator rows: `chunk` for maxima and reciprocals, then those of E
.operand blocks, 5        ; cols / N rounded up
.operand tail, 6          ; columns in the last block
.operand tables, 7        ; DRAM address of 2 x 256 int16; entry d & 255 has the bits of exp(beta * d), d = -255..0
.operand x_sp, 8          ; rows `row` bytes apart
.operand y_sp, 9
.operand low_sp, 10       ; rows 2 * `row` bytes apart
.operand row, 11          ; blocks * N
.operand size, 12         ; bytes of a buffer of x or y: chunk * row

.reg r_at, r1
.reg count, r2
.reg i, r3
.reg odd, r4
.reg x_buf, r5
.reg y_buf, r6
.reg t, r8
.reg two, r9
.reg step, r10            ; bytes of a block of low bits
.reg pitch, r11           ; bytes of a row of low bits

    add two, 2
    set load.word, space=table
    set load.dram, $tables
    set load.len, 1024
    issue load
    set load.word, default
    set load.len, $cols
    set load.dram_y, $cols
    set load.dst_y, $row
    set store.len, $cols
    set store.dram_y, $cols
    set store.src_y, $row
    set fuse.lanes_tail, $tail
    set fuse.x_mult, 1 << 15
    set fuse.r_mult, 1
    set fuse.o_mult, 1
    set fuse.r_shifts, 31 << 16      ; of the sum: nothing is shifted
    set fuse.post_shift, 8
    set fuse.r_base, $low_sp
    shl step, %n, 1
    shl pitch, $row, 1
    set fuse.r_x, step
    set fuse.r_y, pitch
    set fuse.b_y, 1
chunks:
    sub count, $rows, r_at
    min count, count, $chunk
    and t, i, 1
    mul odd, t, $size
    add x_buf, odd, $x_sp
    add y_buf, odd, $y_sp
    blt i, two, free
    wait fuse:0
    wait store:0
free:
    mul t, r_at, $cols
    set load.dram, t, $x
    set load.dst, x_buf
    set load.y_count, count
    issue load, signal(fuse:0)
    ; 1. row maxima
    set fuse.y_count, count
    set fuse.x_count, 1
    set fuse.wx_count, $blocks
    set fuse.src, a_src=sp
    set fuse.stage, reduce=max lane_reduce=max tail_dim=0
    set fuse.zp, 0
    set fuse.a_base, x_buf
    set fuse.a_u, $row
    set fuse.a_v, %n
    set fuse.d_base, 0
    set fuse.d_y, 1
    issue fuse, wait(load:0), signal(fuse:0)
    ; 2. low bits
    set fuse.wx_count, 1
    set fuse.x_count, $blocks
    set fuse.src, a_src=sp b_src=acc b_bcast=1 op=sub
    set fuse.stage, table=1 d_dst=sp d_dtype=i16 tail_dim=2
    set fuse.d_base, $low_sp
    set fuse.d_x, step
    set fuse.d_y, pitch
    issue fuse, wait(fuse:0), signal(fuse:0)
    ; 3. all bits
    set fuse.src, a_src=sp b_src=acc b_bcast=1 op=sub rounding=single
    set fuse.stage, table=1 table_slot=1 residual=1 r_dtype=i16 r_raw=1 tail_dim=2
    set fuse.d_base, $chunk
    set fuse.d_x, 1
    set fuse.d_y, $blocks
    issue fuse, wait(fuse:0), signal(fuse:0)
    ; 4. sums and their reciprocals, scaled by 256
    set fuse.x_count, 1
    set fuse.wx_count, $blocks
    set fuse.src, d_lane=1
    set fuse.stage, reduce=sum lane_reduce=sum post=recip tail_dim=0
    set fuse.a_base, $chunk
    set fuse.a_u, $blocks
    set fuse.a_v, 1
    set fuse.d_base, 0
    set fuse.d_y, 1
    issue fuse, wait(fuse:0), signal(fuse:0)
    ; 5. products
    set fuse.wx_count, 1
    set fuse.x_count, $blocks
    set fuse.src, b_src=acc requant=row rq_lane=1 rounding=even
    set fuse.stage, d_dst=sp tail_dim=2
    set fuse.zp, -128
    set fuse.d_base, y_buf
    set fuse.d_x, %n
    set fuse.d_y, $row
    issue fuse, wait(fuse:0), signal(store:0, seq:0)
    mul t, r_at, $cols
    set store.dram, t, $y
    set store.src, y_buf
    set store.y_count, count
    issue store, wait(fuse:0), signal(seq:0)
    add i, i, 1
    add r_at, r_at, count
    blt r_at, $rows, chunks
    min i, i, 2
    loop i, done
    wait fuse:0
    wait store:0
done:
    halt
