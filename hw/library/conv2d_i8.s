; y = requantize(conv2d(x, w) + bias), int8 in and out, NHWC, one image and one group of channels.
;
; x: rows of in_w pixels of in_c channels. w: one piece of w_block bytes for each block of N output channels, laid out
; [kernel row][kernel column][input channel][N]. A tile is th output rows by nt blocks of output channels; it needs all
; input channels of its rows in the scratchpad. Padding is never stored: rows and columns outside the image read as the
; zero point. Two buffers each of x, w, y and the accumulator, as in gemm_i8.
.name conv2d_i8
.signature operands: 47; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0            ; DRAM addresses
.operand w, 1
.operand y, 2
.operand p, 3            ; parameters, p_block bytes for each block of output channels
.operand in_h, 4
.operand in_w, 5
.operand in_c, 6
.operand out_h, 7
.operand out_w, 8
.operand out_c, 9
.operand kernel_h, 10
.operand kernel_w, 11
.operand stride_h, 12
.operand stride_w, 13
.operand pad_top, 14
.operand pad_left, 15
.operand dilation_h, 16
.operand dilation_w, 17
.operand x_len, 18       ; an image row is x_lines lines of x_len bytes, x_line bytes apart (one line unless grouped)
.operand x_lines, 19
.operand x_line, 20
.operand x_row, 21       ; bytes from image row to image row in DRAM
.operand y_pixel, 22     ; bytes from output pixel to output pixel in DRAM
.operand w_block, 23
.operand p_block, 24
.operand th, 25
.operand nt, 26
.operand blocks, 27      ; blocks of output channels
.operand n_tail, 28
.operand ic_blocks, 29
.operand k_tail, 30      ; input channels in the last block
.operand x_sp, 31        ; scratchpad: two buffers each
.operand x_size, 32
.operand w_sp, 33
.operand w_size, 34
.operand y_sp, 35
.operand y_size, 36
.operand acc_size, 37
.operand matrix_word, 38
.operand a_zp, 39
.operand w_zp, 40
.operand fuse_src, 41
.operand fuse_stage, 42
.operand zp, 43
.operand clip, 44        ; least in bits 7..0, greatest in bits 15..8, both signed
.operand sp_row, 45      ; bytes of an image row in the scratchpad: in_w * in_c
.operand tile_pixels, 46 ; th * out_w

.reg oy, r1              ; first output row of the tile
.reg b0, r2              ; first block of output channels
.reg rows, r3
.reg cols, r4
.reg i, r5               ; tiles so far
.reg band, r6            ; bands of rows so far
.reg x_buf, r7
.reg w_buf, r8
.reg y_buf, r9
.reg acc, r10
.reg slot, r11
.reg low, r12            ; first image row the band needs, may be negative
.reg first, r13          ; first image row loaded
.reg count, r14          ; image rows loaded
.reg t, r15
.reg u, r16
.reg two, r17
.reg pixels, r18
.reg tile_pitch, r19

    add two, 2
    mul tile_pitch, $nt, %n
    set matrix.word, $matrix_word
    set matrix.a_zp, $a_zp
    set matrix.w_zp, $w_zp
    set matrix.kx_count, $kernel_w
    set matrix.ky_count, $kernel_h
    set matrix.ic_count, $ic_blocks
    set matrix.k_tail, $k_tail
    set matrix.x_count, $out_w
    set matrix.a_u, $sp_row
    set matrix.a_v, $in_c
    set matrix.a_ic, %n
    set matrix.u_y, $stride_h
    set matrix.v_x, $stride_w
    set matrix.u_ky, $dilation_h
    set matrix.v_kx, $dilation_w
    sub t, r0, $pad_left
    set matrix.v0, t
    set matrix.v_lim, $in_w
    set matrix.w_row, %n
    mul t, $in_c, %n
    set matrix.w_kx, t
    mul t, t, $kernel_w
    set matrix.w_ky, t
    mul t, %n, %n
    set matrix.w_ic, t
    set matrix.w_oc, $w_block
    set matrix.acc_x, 1
    set matrix.acc_y, $out_w
    set matrix.acc_oc, $tile_pixels
    set fuse.src, $fuse_src
    set fuse.stage, $fuse_stage
    set fuse.zp, $zp
    shl t, $clip, 24
    sar t, t, 24
    set fuse.clip_lo, t
    shl t, $clip, 16
    sar t, t, 24
    set fuse.clip_hi, t
    set fuse.a_n, $tile_pixels
    set fuse.a_v, 1
    set fuse.d_x, tile_pitch
    set fuse.d_n, %n
    set fuse.p_n, 1
    set store.src_y, tile_pitch
    set store.dram_y, $y_pixel

band_loop:
    sub rows, $out_h, oy
    min rows, rows, $th
    mul pixels, rows, $out_w
    ; image rows of this band: low .. low + (rows-1)*stride + (kernel-1)*dilation, cut to the image
    mul low, oy, $stride_h
    sub low, low, $pad_top
    max first, low, 0
    sub t, $in_h, r0, 1
    min first, first, t              ; a band wholly in padding still loads one row
    sub u, rows, 1
    mul u, u, $stride_h
    add u, u, low
    sub count, $kernel_h, 1
    mul count, count, $dilation_h
    add u, u, count
    min u, u, t
    sub count, u, first
    add count, count, 1
    max count, count, 1
    sub t, low, first
    set matrix.u0, t
    set matrix.u_lim, count
    set matrix.y_count, rows
    add b0, 0
block_loop:
    sub cols, $blocks, b0
    min cols, cols, $nt
    add t, b0, cols
    seq t, t, $blocks
    mul t, t, $n_tail                ; 0 (all lanes) but in the last block of columns
    set matrix.n_tail, t
    set fuse.lanes_tail, t
    and t, i, 1
    mul w_buf, t, $w_size
    add w_buf, w_buf, $w_sp
    mul y_buf, t, $y_size
    add y_buf, y_buf, $y_sp
    mul acc, t, $acc_size
    mul slot, t, $nt
    blt i, two, free                 ; tile i-2 has left its buffers
    wait matrix:0
    wait fuse:0
    wait store:0
free:
    bne b0, r0, load_w
    and t, band, 1                   ; a new band: its image rows
    add band, band, 1
    mul x_buf, t, $x_size
    add x_buf, x_buf, $x_sp
    mul t, first, $x_row
    set load.dram, t, $x
    set load.dst, x_buf
    set load.len, $x_len
    set load.y_count, $x_lines
    set load.dram_y, $x_line
    set load.dst_y, $x_len
    set load.z_count, count
    set load.dram_z, $x_row
    set load.dst_z, $sp_row
    issue load
    set load.z_count, 1
    set load.dst_z, 0
load_w:
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
    issue load
    set load.word, default
    mul t, b0, $w_block
    set load.dram, t, $w
    set load.dst, w_buf
    set load.len, $w_block
    set load.dram_y, $w_block
    set load.dst_y, $w_block
    issue load, signal(matrix:0)
    set matrix.a_base, x_buf
    set matrix.w_base, w_buf
    set matrix.acc_base, acc
    set matrix.oc_count, cols
    issue matrix, wait(load:0), signal(fuse:0, seq:0)
    set fuse.a_base, acc
    set fuse.p_base, slot
    set fuse.d_base, y_buf
    set fuse.x_count, pixels
    set fuse.n_count, cols
    issue fuse, wait(matrix:0), signal(store:0, seq:0)
    mul t, oy, $out_w
    mul t, t, $y_pixel
    mul u, b0, %n
    add t, t, u
    set store.dram, t, $y
    set store.src, y_buf
    sub u, $out_c, u
    mul t, cols, %n
    min u, u, t
    set store.len, u
    set store.y_count, pixels
    issue store, wait(fuse:0), signal(seq:0)
    add i, i, 1
    add b0, b0, cols
    blt b0, $blocks, block_loop
    add oy, oy, rows
    blt oy, $out_h, band_loop
    min i, i, 2                      ; tokens of the last two tiles: all has reached DRAM
    loop i, done
    wait matrix:0
    wait fuse:0
    wait store:0
done:
    halt
