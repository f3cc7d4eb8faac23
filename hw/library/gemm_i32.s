; C = alpha * A x B + beta * C0, int8 in, int32 out.
;
; A, B and the tiles are as in gemm_i8; C and C0 are m x n int32, row by row. Sums wrap at 32 bits; the products with
; alpha and beta saturate. C0 is loaded into the buffer that C leaves from. `mode` says what FUSE does with a tile:
;   0  no C0: alpha * accumulator, one pass
;   1  alpha = beta = 1: accumulator + C0, one pass
;   2  beta * C0 -> buffer; alpha * accumulator -> accumulator; their sum: three passes, each after the one before
; A product with a whole number is a requantization with exponent 31: single rounding then shifts by nothing.
.name gemm_i32
.signature operands: 31; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand a, 0            ; DRAM address of A
.operand b, 1            ; DRAM address of B
.operand c, 2            ; DRAM address of C
.operand c0, 3           ; DRAM address of C0
.operand m, 4
.operand n, 5
.operand k, 6
.operand a_pitch, 7
.operand b_row, 8
.operand b_block, 9
.operand c_pitch, 10     ; bytes from row to row of C
.operand c0_pitch, 11
.operand mt, 12
.operand nt, 13
.operand kt, 14
.operand blocks, 15      ; blocks of columns: n / N rounded up
.operand n_tail, 16      ; columns of the last block
.operand a_sp, 17        ; scratchpad: two buffers of A, a_size bytes each, rows kt bytes apart
.operand a_size, 18
.operand b_sp, 19        ; two buffers of B, b_size bytes each
.operand b_size, 20
.operand c_sp, 21        ; two buffers of C, c_size bytes each, rows 4 * nt * N bytes apart
.operand c_size, 22
.operand acc_size, 23    ; rows of each of the two accumulator buffers
.operand matrix_word, 24
.operand a_zp, 25
.operand w_zp, 26
.operand alpha, 27
.operand beta, 28
.operand mode, 29
.operand log2_n, 30

.reg m0, r1              ; first row of the tile
.reg b0, r2              ; first block of columns of the tile
.reg k0, r3              ; first k of the piece
.reg rows, r4
.reg cols, r5            ; blocks of columns in this tile
.reg depth, r6           ; k in this piece
.reg i, r7               ; steps of the array so far
.reg j, r8               ; tiles so far
.reg a_odd, r9           ; which buffer of A
.reg a_buf, r10
.reg b_buf, r11
.reg c_buf, r12
.reg acc, r13
.reg line, r14           ; bytes of a row of this tile
.reg t, r15
.reg u, r16
.reg two, r17
.reg tile_pitch, r18     ; bytes from row to row of a tile of C in the scratchpad
.reg block, r19          ; bytes of N results: 4 * N

    add two, 2
    shl block, %n, 2
    mul tile_pitch, $nt, block
    set matrix.a_zp, $a_zp
    set matrix.w_zp, $w_zp
    set matrix.a_v, $kt
    set matrix.a_ic, %n
    set matrix.w_row, %n
    mul t, %n, %n
    set matrix.w_ic, t
    set matrix.acc_x, 1
    set matrix.acc_oc, $mt
    set fuse.src, a_src=acc requant=imm rounding=single
    bne $mode, r0, add_c0
    beq r0, r0, last_pass
add_c0:
    set fuse.src, a_src=acc b_src=sp b_dtype=i32 op=add
last_pass:
    set fuse.stage, d_dst=sp d_dtype=i32 tail_dim=4
    set fuse.mult, $alpha
    set fuse.shifts, 31
    set fuse.a_n, $mt
    set fuse.a_v, 1
    set fuse.b_x, tile_pitch
    set fuse.b_n, block
    set fuse.d_x, tile_pitch
    set fuse.d_n, block
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
    mul t, b0, %n
    sub t, $n, t
    mul u, cols, %n
    min t, t, u
    shl line, t, 2
    blt j, two, drained              ; the drain of tile j-2 has left the accumulator, its store the buffer of C
    wait fuse:0
    wait store:0
drained:
    beq $mode, r0, no_c0
    mul t, m0, $c0_pitch
    mul u, b0, block
    add t, t, u
    set load.dram, t, $c0
    set load.dst, c_buf
    set load.len, line
    set load.y_count, rows
    set load.dram_y, $c0_pitch
    set load.dst_y, tile_pitch
    set load.z_count, 1
    issue load, signal(fuse:0)
no_c0:
    add k0, 0
depth_loop:
    sub depth, $k, k0
    min depth, depth, $kt
    blt i, two, left                 ; step i-2 of the array has left its buffers
    wait matrix:0
left:
    bne k0, r0, load_a               ; A stays for all tiles of these rows unless k is cut
    blt depth, $k, load_a
    bne b0, r0, load_b
load_a:
    mul a_buf, a_odd, $a_size
    add a_buf, a_buf, $a_sp
    xor a_odd, a_odd, 1
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
    and t, i, 1
    mul b_buf, t, $b_size
    add b_buf, b_buf, $b_sp
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
    add i, i, 1
    add k0, k0, depth
    blt k0, $k, more_depth
    issue matrix, wait(load:0), signal(fuse:0, seq:0)
    set fuse.x_count, rows
    set fuse.n_count, cols
    beq $mode, r0, drain
    set fuse.b_base, c_buf
    blt $mode, two, drain_and_add
    ; beta * C0, in place
    set fuse.src, a_src=sp a_dtype=i32 requant=imm rounding=single
    set fuse.mult, $beta
    set fuse.a_base, c_buf
    set fuse.a_n, block
    set fuse.a_v, tile_pitch
    set fuse.d_base, c_buf
    issue fuse, wait(load:0), signal(fuse:0)
    ; alpha * accumulator, in place
    set fuse.src, a_src=acc requant=imm rounding=single
    set fuse.stage, d_dst=acc tail_dim=4
    set fuse.mult, $alpha
    set fuse.a_base, acc
    set fuse.a_n, $mt
    set fuse.a_v, 1
    set fuse.d_base, acc
    set fuse.d_n, $mt
    set fuse.d_x, 1
    issue fuse, wait(matrix:0, fuse:0), signal(fuse:0)
    ; their sum
    set fuse.src, a_src=acc b_src=sp b_dtype=i32 op=add
    set fuse.stage, d_dst=sp d_dtype=i32 tail_dim=4
    set fuse.d_base, c_buf
    set fuse.d_n, block
    set fuse.d_x, tile_pitch
    issue fuse, wait(fuse:0), signal(store:0, seq:0)
    beq r0, r0, store_tile
drain_and_add:
    set fuse.a_base, acc
    set fuse.d_base, c_buf
    issue fuse, wait(matrix:0, load:0), signal(store:0, seq:0)
    beq r0, r0, store_tile
drain:
    set fuse.a_base, acc
    set fuse.d_base, c_buf
    issue fuse, wait(matrix:0), signal(store:0, seq:0)
store_tile:
    mul t, m0, $c_pitch
    mul u, b0, block
    add t, t, u
    set store.dram, t, $c
    set store.src, c_buf
    set store.len, line
    set store.y_count, rows
    issue store, wait(fuse:0), signal(seq:0)
    add j, j, 1
    add b0, b0, cols
    blt b0, $blocks, cols_loop
    add m0, m0, rows
    blt m0, $m, rows_loop
    ; take the tokens of the last two steps and tiles: all has reached DRAM
    min i, i, 2
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
