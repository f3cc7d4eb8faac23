; C = requantize(A x B + bias), int8 in and out.
;
; A is m x k bytes with a_pitch bytes from row to row; B comes in blocks of N columns, each k rows of N bytes (b_row
; bytes apart, b_block bytes from block to block; spare columns of the last block may hold anything); C is m x n bytes.
; A tile of C is mt rows by nt blocks of columns; k is cut into pieces of kt (a multiple of N, or all of k). Rings of buffers
; of A and B, and two each of C and the accumulator, let the loads, the array, the drain and the stores of neighbouring
; steps overlap: a step may reuse what an earlier one has left, so the sequencer takes that one's tokens before it issues.
.name gemm_i8
.signature operands: 33; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand a, 0            ; DRAM address of A
.operand b, 1            ; DRAM address of B
.operand c, 2            ; DRAM address of C
.operand p, 3            ; DRAM address of the parameters, p_block bytes for each block of columns
.operand m, 4
.operand n, 5
.operand k, 6
.operand a_pitch, 7
.operand b_row, 8
.operand b_block, 9
.operand c_pitch, 10
.operand p_block, 11
.operand mt, 12
.operand nt, 13
.operand kt, 14
.operand blocks, 15      ; blocks of columns: n / N rounded up
.operand n_tail, 16      ; columns of the last block
.operand a_sp, 17        ; scratchpad: `buffers` buffers of A, a_size bytes each, rows kt bytes apart
.operand a_size, 18
.operand b_sp, 19        ; `buffers` buffers of B, b_size bytes each
.operand b_size, 20
.operand c_sp, 21        ; two buffers of C, c_size bytes each, rows nt * N bytes apart
.operand c_size, 22
.operand acc_size, 23    ; rows of each of the two accumulator buffers
.operand matrix_word, 24
.operand a_zp, 25
.operand w_zp, 26
.operand fuse_src, 27
.operand fuse_stage, 28
.operand zp, 29
.operand log2_n, 31
.operand buffers, 32     ; 2 or more
.operand clip, 30        ; clip range: least in bits 7..0, greatest in bits 15..8, both signed

.reg m0, r1              ; first row of the tile
.reg b0, r2              ; first block of columns of the tile
.reg k0, r3              ; first k of the piece
.reg rows, r4
.reg cols, r5            ; blocks of columns in this tile
.reg depth, r6           ; k in this piece
.reg i, r7               ; steps of the array so far
.reg j, r8               ; tiles so far
.reg a_next, r9          ; next buffer of A
.reg a_buf, r10
.reg b_buf, r11
.reg c_buf, r12
.reg acc, r13
.reg slot, r14
.reg t, r15
.reg u, r16
.reg two, r17
.reg b_next, r19         ; next buffer of B
.reg tile_pitch, r18     ; bytes from row to row of a tile of C in the scratchpad

    add two, 2
    mul tile_pitch, $nt, %n
    set matrix.a_zp, $a_zp
    set matrix.w_zp, $w_zp
    set matrix.a_v, $kt
    set matrix.a_ic, %n
    set matrix.w_row, %n
    mul t, %n, %n
    set matrix.w_ic, t
    set matrix.acc_x, 1
    set matrix.acc_oc, $mt
    set fuse.src, $fuse_src
    set fuse.stage, $fuse_stage
    set fuse.zp, $zp
    shl t, $clip, 24
    sar t, t, 24
    set fuse.clip_lo, t
    shl t, $clip, 16
    sar t, t, 24
    set fuse.clip_hi, t
    set fuse.a_n, $mt
    set fuse.a_v, 1
    set fuse.d_x, tile_pitch
    set fuse.d_n, %n
    set fuse.p_n, 1
    set store.src_y, tile_pitch
    set store.dram_y, $c_pitch

rows_loop:
    sub rows, $m, m0
    min rows, rows, $mt
    add b0, 0
cols_loop:
    sub cols, $blocks, b0
    min cols, cols, $nt
    add t, b0, cols
    seq t, t, $blocks
    mul t, t, $n_tail                ; 0 (all lanes) but in the last block of columns
    set matrix.n_tail, t
    set fuse.lanes_tail, t
    and t, j, 1                      ; buffers of this tile
    mul c_buf, t, $c_size
    add c_buf, c_buf, $c_sp
    mul acc, t, $acc_size
    and t, j, 3                      ; parameters of this tile's columns: the drain of tile j-4 has left their slots
    mul slot, t, $nt
    mul t, b0, $p_block
    set load.dram, t, $p
    set load.word, space=param
    shl t, slot, 4
    mul t, t, %n
    set load.dst, t
    set load.len, $p_block
    set load.y_count, cols
    set load.dram_y, $p_block
    shl t, %n, 4
    set load.dst_y, t
    set load.z_count, 1
    issue load
    set load.word, default
    add k0, 0
depth_loop:
    sub depth, $k, k0
    min depth, depth, $kt
    blt i, $buffers, left            ; an earlier step of the array has left its buffers
    wait matrix:0
left:
    bne k0, r0, load_a               ; A stays for all tiles of these rows unless k is cut
    blt depth, $k, load_a
    bne b0, r0, load_b
load_a:
    mul a_buf, a_next, $a_size
    add a_buf, a_buf, $a_sp
    add a_next, a_next, 1
    blt a_next, $buffers, a_placed
    add a_next, 0
a_placed:
    mul t, m0, $a_pitch
    add t, t, $a
    set load.dram, t, k0
    set load.dst, a_buf
    set load.len, depth
    set load.y_count, rows
    set load.dram_y, $a_pitch
    set load.dst_y, $kt
    set load.z_count, 1
    issue load
load_b:
    mul b_buf, b_next, $b_size
    add b_buf, b_buf, $b_sp
    add b_next, b_next, 1
    blt b_next, $buffers, b_placed
    add b_next, 0
b_placed:
    mul t, b0, $b_block
    mul u, k0, $b_row
    add t, t, u
    set load.dram, t, $b
    set load.dst, b_buf
    set load.len, %n
    set load.y_count, depth
    set load.dram_y, $b_row
    set load.dst_y, %n
    set load.z_count, cols
    set load.dram_z, $b_block
    mul t, depth, %n
    set load.dst_z, t
    issue load, signal(matrix:0)
    ; the array: rows x depth x cols
    set matrix.w_oc, t
    set matrix.a_base, a_buf
    set matrix.w_base, b_buf
    set matrix.acc_base, acc
    set matrix.x_count, rows
    set matrix.oc_count, cols
    add u, depth, %n, -1             ; blocks of depth: (depth + N - 1) / N
    shr u, u, $log2_n
    set matrix.ic_count, u
    sub u, u, 1
    mul u, u, %n
    sub u, depth, u
    set matrix.k_tail, u
    sltu t, r0, k0                   ; pieces after the first add to the accumulator
    shl t, t, 1
    set matrix.word, $matrix_word, t
    bne k0, r0, drained
    blt j, two, drained              ; the drain of tile j-2 has left its accumulator, its store the buffer of C
    wait fuse:0
    wait store:0
drained:
    add i, i, 1
    add k0, k0, depth
    blt k0, $k, more_depth
    issue matrix, wait(load:0), signal(fuse:0, seq:0)
    ; drain: requantize to int8
    set fuse.a_base, acc
    set fuse.p_base, slot
    set fuse.d_base, c_buf
    set fuse.x_count, rows
    set fuse.n_count, cols
    issue fuse, wait(matrix:0), signal(store:0, seq:0)
    ; store the tile
    mul t, m0, $c_pitch
    mul u, b0, %n
    add t, t, u
    set store.dram, t, $c
    set store.src, c_buf
    sub u, $n, u
    mul t, cols, %n
    min u, u, t
    set store.len, u
    set store.y_count, rows
    issue store, wait(fuse:0), signal(seq:0)
    add j, j, 1
    add b0, b0, cols
    blt b0, $blocks, cols_loop
    add m0, m0, rows
    blt m0, $m, rows_loop
    ; take the tokens of the last steps and tiles: all has reached DRAM
    min i, i, $buffers
    loop i, arrays_done
    wait matrix:0
arrays_done:
    min j, j, 2
    loop j, tiles_done
    wait fuse:0
    wait store:0
tiles_done:
    halt
more_depth:
    issue matrix, wait(load:0), signal(seq:0)
    beq r0, r0, depth_loop
