; One result for each row of an int8 matrix: sum, maximum or minimum over its columns, post-scaled if asked.
;
; Chunks of rows; two buffers each of x and the results. The fuse words choose the reduction, the post-scale and the
; type of the results (`size` bytes each).
.name reduce
.signature operands: 19; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand y, 1
.operand rows, 2
.operand cols, 3
.operand chunk, 4         ; rows of a chunk
.operand blocks, 5        ; cols / N rounded up
.operand tail, 6          ; columns in the last block
.operand x_sp, 7          ; rows `row` bytes apart
.operand x_size, 8
.operand y_sp, 9
.operand y_size, 10
.operand row, 11          ; blocks * N
.operand size, 12
.operand fuse_src, 13
.operand fuse_stage, 14
.operand post_mult, 15
.operand post_shift, 16
.operand post_zp, 17
.operand zp_a, 18

.reg at, r1
.reg count, r2
.reg i, r3
.reg x_buf, r4
.reg y_buf, r5
.reg t, r6
.reg two, r7

    add two, 2
    set fuse.src, $fuse_src
    set fuse.stage, $fuse_stage
    set fuse.zp_ab, $zp_a
    set fuse.wx_count, $blocks
    set fuse.lanes_tail, $tail
    set fuse.a_u, $row
    set fuse.a_v, %n
    set fuse.d_y, $size
    set fuse.post_mult, $post_mult
    set fuse.post_shift, $post_shift
    set fuse.post_zp, $post_zp
    set load.len, $cols
    set load.dram_y, $cols
    set load.dst_y, $row
chunks:
    sub count, $rows, at
    min count, count, $chunk
    and t, i, 1
    mul x_buf, t, $x_size
    add x_buf, x_buf, $x_sp
    mul y_buf, t, $y_size
    add y_buf, y_buf, $y_sp
    blt i, two, free
    wait fuse:0
    wait store:0
free:
    mul t, at, $cols
    set load.dram, t, $x
    set load.dst, x_buf
    set load.y_count, count
    issue load, signal(fuse:0)
    set fuse.y_count, count
    set fuse.a_base, x_buf
    set fuse.d_base, y_buf
    issue fuse, wait(load:0), signal(store:0, seq:0)
    mul t, at, $size
    set store.dram, t, $y
    set store.src, y_buf
    mul t, count, $size
    set store.len, t
    issue store, wait(fuse:0), signal(seq:0)
    add i, i, 1
    add at, at, count
    blt at, $rows, chunks
    min i, i, 2
    loop i, done
    wait fuse:0
    wait store:0
done:
    halt
