; y[i] = f(a[i], b[i]): add and multiply with own scales, table look-up, requantization; the fuse words say which.
;
; Runs over flat bytes in chunks; two buffers each of a, b and y. The second source feeds operand B and the residual add
; alike. A table, if there is one, is loaded to slot 0 first.
.name elementwise
.signature operands: 31; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand a, 0
.operand b, 1
.operand y, 2
.operand total, 3         ; bytes
.operand chunk, 4         ; bytes of a chunk, a multiple of N
.operand a_sp, 5          ; two buffers of chunk bytes each
.operand b_sp, 6
.operand y_sp, 7
.operand sources, 8       ; 1 or 2
.operand table, 9         ; DRAM address of 256 int16, or 0
.operand log2_n, 10
.operand fuse_src, 11
.operand fuse_stage, 12
.operand zp_ab, 13
.operand op_shift, 14
.operand bias, 15
.operand mult, 16
.operand shifts, 17
.operand zp, 18
.operand clip_lo, 19
.operand clip_hi, 20
.operand zp_xr, 21
.operand x_mult, 22
.operand r_mult, 23
.operand o_mult, 24
.operand r_shifts, 25
.operand r_bias, 26
.operand o_zp, 27
.operand r_lo, 28
.operand r_hi, 29
.operand neg_mult, 30

.reg at, r1               ; first byte of the chunk
.reg len, r2
.reg i, r3
.reg odd, r4              ; offset of this chunk's buffers
.reg t, r5
.reg two, r6

    add two, 2
    beq $table, r0, configure
    set load.word, space=table
    set load.dram, $table
    set load.len, 512
    issue load                       ; in order with the first chunk, whose token covers it
    set load.word, default
configure:
    set fuse.src, $fuse_src
    set fuse.stage, $fuse_stage
    set fuse.zp_ab, $zp_ab
    set fuse.op_shift, $op_shift
    set fuse.bias, $bias
    set fuse.mult, $mult
    set fuse.neg_mult, $neg_mult
    set fuse.shifts, $shifts
    set fuse.zp, $zp
    set fuse.clip_lo, $clip_lo
    set fuse.clip_hi, $clip_hi
    set fuse.zp_xr, $zp_xr
    set fuse.x_mult, $x_mult
    set fuse.r_mult, $r_mult
    set fuse.o_mult, $o_mult
    set fuse.r_shifts, $r_shifts
    set fuse.r_bias, $r_bias
    set fuse.o_zp, $o_zp
    set fuse.r_lo, $r_lo
    set fuse.r_hi, $r_hi
    set fuse.a_v, %n
    set fuse.b_x, %n
    set fuse.r_x, %n
    set fuse.d_x, %n
chunks:
    sub len, $total, at
    min len, len, $chunk
    and odd, i, 1
    mul odd, odd, $chunk
    blt i, two, free                 ; chunk i-2 is computed and stored
    wait fuse:0
    wait store:0
free:
    set load.len, len
    set load.dram, at, $a
    set load.dst, odd, $a_sp
    blt $sources, two, last_source
    issue load
    set load.dram, at, $b
    set load.dst, odd, $b_sp
last_source:
    issue load, signal(fuse:0)
    add t, len, %n, -1
    shr t, t, $log2_n
    set fuse.x_count, t
    and t, len, %n, -1               ; lanes of the last row, 0: all
    set fuse.lanes_tail, t
    set fuse.a_base, odd, $a_sp
    set fuse.b_base, odd, $b_sp
    set fuse.r_base, odd, $b_sp
    set fuse.d_base, odd, $y_sp
    issue fuse, wait(load:0), signal(store:0, seq:0)
    set store.dram, at, $y
    set store.src, odd, $y_sp
    set store.len, len
    issue store, wait(fuse:0), signal(seq:0)
    add i, i, 1
    add at, at, len
    blt at, $total, chunks
    min i, i, 2
    loop i, done
    wait fuse:0
    wait store:0
done:
    halt
