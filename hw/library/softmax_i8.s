; Softmax over the rows of a matrix, int8: y = round(256 * exp(beta * (x - max)) / sum) - 128, as TFLite scales it.
;
; Three passes of FUSE over a chunk of rows, each ordered after the one before by a token to itself. An exponential E has
; up to 29 bits; the halves of a wide table hold E for each byte x - max:
;   1. maximum of a row                               -> accumulator row, lane 0
;   2. sum of a row's E and its reciprocal            -> accumulator row, lanes 1 and 2 (multiplier, exponent)
;   3. E times reciprocal                             -> scratchpad, int8
; x and y have two buffers; the accumulator rows have one, since FUSE reads and writes them in order.
.name softmax_i8
.signature operands: 12; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand y, 1
.operand rows, 2
.operand cols, 3
.operand chunk, 4         ; rows of a chunk, each of which has an accumulator row
.operand blocks, 5        ; cols / N rounded up
.operand tail, 6          ; columns in the last block
.operand tables, 7        ; DRAM address of 2 x 256 int16, the halves of E; entry d & 255 is exp(beta * d), d = -255..0
.operand x_sp, 8          ; rows `row` bytes apart
.operand y_sp, 9
.operand row, 10          ; blocks * N
.operand size, 11         ; bytes of a buffer of x or y: chunk * row

.reg r_at, r1
.reg count, r2
.reg i, r3
.reg odd, r4
.reg x_buf, r5
.reg y_buf, r6
.reg t, r8
.reg two, r9

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
    set fuse.post_shift, 8
    set fuse.post_zp, -128
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
    set fuse.a_base, x_buf
    set fuse.a_u, $row
    set fuse.a_v, %n
    set fuse.d_base, 0
    set fuse.d_y, 1
    issue fuse, wait(load:0), signal(fuse:0)
    ; 2. sums and their reciprocals, scaled by 256
    set fuse.src, a_src=sp b_src=acc b_bcast=1 op=sub rq_lane=1 d_lane=1
    set fuse.stage, table=1 table_wide=1 reduce=sum lane_reduce=sum post=recip tail_dim=0
    issue fuse, wait(fuse:0), signal(fuse:0)
    ; 3. products
    set fuse.wx_count, 1
    set fuse.x_count, $blocks
    set fuse.stage, table=1 table_wide=1 post=row post_rounding=even d_dst=sp tail_dim=2
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
