; Softmax over the rows of a matrix, int8: y = round(256 * exp(beta * (x - max)) / sum) - 128, as TFLite scales it.
;
; Four passes of FUSE over a chunk of rows, each ordered after the one before by a token to itself:
;   1. maximum of a row                             -> accumulator row, lane 0
;   2. table[x - max], 16-bit exponentials          -> scratchpad
;   3. their sum and its reciprocal                 -> accumulator row, lanes 1 and 2 (multiplier, exponent)
;   4. exponential times reciprocal, requantized    -> scratchpad, int8
; Two buffers of x and y and of the accumulator rows; the exponentials have one, used by FUSE alone.
.name softmax_i8
.signature operands: 13; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand y, 1
.operand rows, 2
.operand cols, 3
.operand chunk, 4         ; rows of a chunk
.operand blocks, 5        ; cols / N rounded up
.operand tail, 6          ; columns in the last block
.operand table, 7         ; DRAM address of 256 int16, entry d & 255 = exp(beta * d) for d = -255..0
.operand x_sp, 8          ; rows `row` bytes apart
.operand y_sp, 9
.operand e_sp, 10         ; rows 2 * `row` bytes apart
.operand row, 11          ; blocks * N
.operand size, 12         ; bytes of a buffer of x or y: chunk * row

.reg r_at, r1
.reg count, r2
.reg i, r3
.reg odd, r4
.reg x_buf, r5
.reg y_buf, r6
.reg acc, r7
.reg t, r8
.reg two, r9
.reg step, r10            ; bytes of a block of exponentials

    add two, 2
    set load.word, space=table
    set load.dram, $table
    set load.len, 512
    issue load
    set load.word, default
    set load.len, $cols
    set load.dram_y, $cols
    set load.dst_y, $row
    set store.len, $cols
    set store.dram_y, $cols
    set store.src_y, $row
    set fuse.lanes_tail, $tail
    shl step, %n, 1
chunks:
    sub count, $rows, r_at
    min count, count, $chunk
    and t, i, 1
    mul odd, t, $size
    add x_buf, odd, $x_sp
    add y_buf, odd, $y_sp
    mul acc, t, $chunk
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
    set fuse.a_base, x_buf
    set fuse.a_u, $row
    set fuse.a_v, %n
    set fuse.d_base, acc
    set fuse.d_y, 1
    issue fuse, wait(load:0), signal(fuse:0)
    ; 2. exponentials
    set fuse.wx_count, 1
    set fuse.x_count, $blocks
    set fuse.src, a_src=sp b_src=acc b_bcast=1 op=sub
    set fuse.stage, table=1 d_dst=sp d_dtype=i16 tail_dim=2
    set fuse.b_base, acc
    set fuse.b_y, 1
    set fuse.d_base, $e_sp
    shl t, $row, 1
    set fuse.d_y, t
    set fuse.d_x, step
    issue fuse, wait(fuse:0), signal(fuse:0)
    ; 3. sums and their reciprocals, scaled by 256
    set fuse.x_count, 1
    set fuse.wx_count, $blocks
    set fuse.src, a_src=sp a_dtype=i16 d_lane=1
    set fuse.stage, reduce=sum lane_reduce=sum post=recip tail_dim=0
    set fuse.a_base, $e_sp
    set fuse.a_u, t
    set fuse.a_v, step
    set fuse.post_shift, 8
    set fuse.d_base, acc
    set fuse.d_y, 1
    issue fuse, wait(fuse:0), signal(fuse:0)
    ; 4. products
    set fuse.wx_count, 1
    set fuse.x_count, $blocks
    set fuse.src, a_src=sp a_dtype=i16 b_src=acc requant=row rq_lane=1
    set fuse.stage, d_dst=sp tail_dim=2
    set fuse.zp, -128
    set fuse.d_base, y_buf
    set fuse.d_y, $row
    set fuse.d_x, %n
    issue fuse, wait(fuse:0), signal(store:0, seq:0)
    set fuse.zp, 0
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
