; Maximum and average pooling, int8, NHWC, one image; averages divide by the taps inside the image.
;
; One block of N channels and one band of output rows at a time; two buffers each of x and y.
.name pool_i8
.signature operands: 28; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand y, 1
.operand in_h, 2
.operand in_w, 3
.operand channels, 4
.operand out_h, 5
.operand out_w, 6
.operand window_h, 7
.operand window_w, 8
.operand stride_h, 9
.operand stride_w, 10
.operand pad_top, 11
.operand pad_left, 12
.operand band_h, 13       ; output rows of a band
.operand x_row, 14        ; bytes from image row to image row in DRAM
.operand x_whole, 15      ; bytes of an image row if channels <= N (it is then one line), else 0
.operand sp_pixel, 16     ; bytes of a pixel in the scratchpad
.operand sp_row, 17
.operand x_sp, 18
.operand x_size, 19
.operand y_sp, 20
.operand y_size, 21
.operand fuse_src, 22
.operand fuse_stage, 23
.operand post_lo, 24
.operand post_hi, 25
.operand clip_lo, 26      ; of the sources
.operand clip_hi, 27

.reg c0, r1               ; first channel of the block
.reg lanes, r2
.reg oy, r3
.reg rows, r4
.reg i, r5
.reg low, r6              ; first image row the band looks at, may be negative
.reg first, r7            ; first one loaded
.reg count, r8
.reg x_buf, r9
.reg y_buf, r10
.reg t, r11
.reg u, r12
.reg two, r13

    add two, 2
    set fuse.src, $fuse_src
    set fuse.stage, $fuse_stage
    set fuse.wy_count, $window_h
    set fuse.wx_count, $window_w
    set fuse.x_count, $out_w
    set fuse.u_y, $stride_h
    set fuse.v_x, $stride_w
    set fuse.a_u, $sp_row
    set fuse.a_v, $sp_pixel
    sub t, r0, $pad_left
    set fuse.v0, t
    set fuse.v_lim, $in_w
    set fuse.d_x, $sp_pixel
    mul t, $out_w, $sp_pixel
    set fuse.d_y, t
    set fuse.post_lo, $post_lo
    set fuse.post_hi, $post_hi
    set fuse.clip_lo, $clip_lo
    set fuse.clip_hi, $clip_hi
    set load.dram_z, $x_row
    set load.dst_z, $sp_row
    set load.dram_y, $channels
    set load.dst_y, $sp_pixel
    set store.dram_y, $channels
    set store.src_y, $sp_pixel
blocks:
    sub lanes, $channels, c0
    min lanes, lanes, %n
    set fuse.lanes, lanes
    add oy, 0
bands:
    sub rows, $out_h, oy
    min rows, rows, $band_h
    and t, i, 1
    mul x_buf, t, $x_size
    add x_buf, x_buf, $x_sp
    mul y_buf, t, $y_size
    add y_buf, y_buf, $y_sp
    mul low, oy, $stride_h
    sub low, low, $pad_top
    sub t, $in_h, 1
    max first, low, 0
    min first, first, t
    sub u, rows, 1
    mul u, u, $stride_h
    add u, u, low
    add u, u, $window_h, -1
    min u, u, t
    sub count, u, first
    add count, count, 1
    max count, count, 1
    blt i, two, free                 ; band i-2 is computed and stored
    wait fuse:0
    wait store:0
free:
    mul t, first, $x_row
    add t, t, c0
    set load.dram, t, $x
    set load.dst, x_buf
    set load.z_count, count
    bne $x_whole, r0, whole
    set load.len, lanes
    set load.y_count, $in_w
    beq r0, r0, load_band
whole:
    set load.len, $x_whole
    set load.y_count, 1
load_band:
    issue load, signal(fuse:0)
    sub t, low, first
    set fuse.u0, t
    set fuse.u_lim, count
    set fuse.y_count, rows
    set fuse.a_base, x_buf
    set fuse.d_base, y_buf
    issue fuse, wait(load:0), signal(store:0, seq:0)
    mul t, oy, $out_w
    mul t, t, $channels
    add t, t, c0
    set store.dram, t, $y
    set store.src, y_buf
    mul t, rows, $out_w
    bne $x_whole, r0, store_whole
    set store.len, lanes
    set store.y_count, t
    beq r0, r0, store_band
store_whole:
    mul t, t, $channels
    set store.len, t
    set store.y_count, 1
store_band:
    issue store, wait(fuse:0), signal(seq:0)
    add i, i, 1
    add oy, oy, rows
    blt oy, $out_h, bands
    add c0, c0, %n
    blt c0, $channels, blocks
    min i, i, 2
    loop i, done
    wait fuse:0
    wait store:0
done:
    halt
