; y = requantize(depthwise conv2d(x, w) + bias), int8 in and out, NHWC, one image, one output for each input channel.
;
; A step is a band of band_h output rows of one block of N channels: its image rows lie in one of two buffers of x and are loaded
; while the step before is computed. A step is cut into stripes of stripe_h rows that fit one of two accumulator buffers and
; one of two buffers of y. w: for each block kernel_h * taps rows of N bytes. `groups` kernel rows are fed at once; more
; kernel rows take more passes, which add to the accumulator. With one pass the stripes of a band continue each other's
; line buffers (keep), so that no image row is streamed twice; `pitch` must then leave each image row its own padding:
; at least (out_w - 1) * stride_w + taps positions.
.name depthwise_i8
.signature operands: 41; semaphores at entry and exit: all zero; regions at entry and exit: none
.operand x, 0
.operand w, 1
.operand y, 2
.operand p, 3
.operand in_h, 4
.operand in_w, 5
.operand channels, 6
.operand out_h, 7
.operand out_w, 8
.operand kernel_h, 9
.operand taps, 10         ; kernel_w
.operand stride_h, 11
.operand stride_w, 12
.operand pad_top, 13
.operand pad_left, 14
.operand pitch, 15        ; stream positions of an image row
.operand groups, 16       ; kernel rows fed at once
.operand passes, 17       ; kernel_h / groups rounded up
.operand band_h, 18
.operand stripe_h, 19
.operand x_row, 20        ; bytes from image row to image row in DRAM
.operand x_whole, 21      ; bytes of an image row if channels <= N (it is then one line), else 0
.operand sp_pixel, 22     ; bytes of a pixel in the scratchpad: channels if whole, else N
.operand sp_row, 23
.operand w_block, 24      ; bytes of the weights of a block
.operand p_block, 25
.operand x_sp, 26
.operand x_size, 27
.operand w_sp, 28
.operand y_sp, 29
.operand y_size, 30
.operand acc_size, 31
.operand matrix_word, 32  ; dw and taps; groups, accumulate and keep are added here
.operand a_zp, 33
.operand w_zp, 34
.operand fuse_src, 35
.operand fuse_stage, 36
.operand zp, 37
.operand clip, 38         ; least in bits 7..0, greatest in bits 15..8, both signed
.operand span, 39         ; (out_w - 1) * stride_w + 1
.operand blocks, 40       ; channels / N rounded up
.equ GROUPS, 1 << 12      ; of matrix.word
.equ ACCUMULATE, 1 << 1
.equ KEEP, 1 << 6

.reg b, r1                ; block of channels
.reg oy, r2               ; first output row of the stripe
.reg end, r3              ; end of the band
.reg lanes, r4
.reg rows, r5             ; output rows of the stripe
.reg i, r6                ; stripes so far
.reg j, r7                ; steps so far
.reg before, r8           ; stripes of the step before
.reg stripes, r9          ; stripes of this step
.reg first, r10           ; first image row in the scratchpad
.reg count, r11           ; image rows in the scratchpad
.reg g0, r12              ; first kernel row of the pass
.reg g, r13               ; kernel rows of the pass
.reg lead, r14
.reg len, r15
.reg streamed, r16        ; image rows streamed if another stripe continues
.reg row, r17             ; image row at which the stream starts
.reg more, r18            ; another stripe continues this one
.reg t, r19
.reg u, r20
.reg word, r21
.reg acc, r22
.reg y_buf, r23
.reg load_b, r24          ; next step to load
.reg load_oy, r25
.reg load_j, r26
.reg two, r27
.reg w_buf, r28
.reg pixels, r29

    add two, 2
    set matrix.a_zp, $a_zp
    set matrix.w_zp, $w_zp
    set matrix.x_count, $pitch
    set matrix.a_u, $sp_row
    set matrix.a_v, $sp_pixel
    sub t, r0, $pad_left
    set matrix.v0, t
    set matrix.v_lim, $in_w
    set matrix.w_row, %n
    set matrix.acc_x, 1
    set matrix.acc_y, $out_w
    set matrix.dw_out_w, $out_w
    set matrix.dw_sx, $stride_w
    set matrix.dw_sy, $stride_h
    set fuse.src, $fuse_src
    set fuse.stage, $fuse_stage
    set fuse.zp, $zp
    shl t, $clip, 24
    sar t, t, 24
    set fuse.clip_lo, t
    shl t, $clip, 16
    sar t, t, 24
    set fuse.clip_hi, t
    set fuse.a_v, 1
    set fuse.d_x, $sp_pixel
    set store.src_y, $sp_pixel
    set store.dram_y, $channels
    call load_step

step_loop:
    bge load_b, $blocks, loaded      ; nothing left to load
    loop before, left                ; the array has left the buffers of the step before
    wait matrix:0
left:
    add before, 0
    call load_step
loaded:
    mul t, b, %n
    sub lanes, $channels, t
    min lanes, lanes, %n
    set fuse.lanes, lanes
    set matrix.n_cols, lanes
    and t, b, 3
    set fuse.p_base, t
    and t, b, 1
    mul w_buf, t, $w_block
    add w_buf, w_buf, $w_sp
    add end, oy, $band_h
    min end, end, $out_h
    call image_rows
    set matrix.u_lim, count
    and t, j, 1
    mul t, t, $x_size
    set matrix.a_base, t, $x_sp
    add stripes, 0
    wait load:0

stripe_loop:
    sub rows, end, oy
    min rows, rows, $stripe_h
    and t, i, 1
    mul acc, t, $acc_size
    mul y_buf, t, $y_size
    add y_buf, y_buf, $y_sp
    blt i, two, free                 ; stripe i-2 is drained and stored
    wait fuse:0
    wait store:0
free:
    set matrix.acc_base, acc
    add t, oy, rows
    slt more, t, end
    slt t, $passes, two
    and more, more, t                ; only a single pass can be continued
    add g0, 0
pass_loop:
    sub g, $kernel_h, g0
    min g, g, $groups
    mul word, g, GROUPS
    add word, word, $matrix_word
    beq stripes, r0, start           ; the first stripe of a band, or one that could not be continued
    slt t, $passes, two
    bne t, r0, continue
start:
    mul row, oy, $stride_h           ; first image row of the pass ...
    sub row, row, $pad_top
    add row, row, g0
    sub t, r0, row                   ; ... of which the rows above the image are the zeros before the stream
    max t, t, 0
    sub u, g, 1
    min t, t, u
    add row, row, t
    sub u, u, t
    mul lead, u, $pitch
    sub streamed, rows, 1
    mul streamed, streamed, $stride_h
    add streamed, streamed, u, 1
    beq r0, r0, stream
continue:
    add word, word, KEEP
    sub u, $stride_h, 1
    mul lead, u, $pitch
    mul streamed, rows, $stride_h
stream:
    add lead, lead, $taps, -1
    sltu t, r0, g0
    mul t, t, ACCUMULATE
    set matrix.word, word, t
    sub t, row, first
    set matrix.u0, t
    set matrix.dw_lead, lead
    mul len, streamed, $pitch        ; whole image rows if another stripe continues ...
    add row, row, streamed
    bne more, r0, sized
    sub len, rows, 1                 ; ... else up to the last output
    mul len, len, $stride_h
    mul len, len, $pitch
    add len, len, lead
    add len, len, $span
sized:
    set matrix.dw_len, len
    mul t, g0, $taps
    mul t, t, %n
    set matrix.w_base, w_buf, t
    add g0, g0, g
    blt g0, $kernel_h, more_passes
    issue matrix, signal(fuse:0, seq:0)
    mul pixels, rows, $out_w
    set fuse.a_base, acc
    set fuse.d_base, y_buf
    set fuse.x_count, pixels
    issue fuse, wait(matrix:0), signal(store:0, seq:0)
    mul t, oy, $out_w
    mul t, t, $channels
    mul u, b, %n
    add t, t, u
    set store.dram, t, $y
    set store.src, y_buf
    bne $x_whole, r0, store_whole
    set store.len, lanes
    set store.y_count, pixels
    beq r0, r0, store_tile
store_whole:
    mul t, pixels, $channels
    set store.len, t
    set store.y_count, 1
store_tile:
    issue store, wait(fuse:0), signal(seq:0)
    add i, i, 1
    add stripes, stripes, 1
    add oy, oy, rows
    blt oy, end, stripe_loop
    add before, before, stripes
    add j, j, 1
    blt oy, $out_h, step_loop
    add oy, 0
    add b, b, 1
    blt b, $blocks, step_loop
    loop before, arrays_done         ; take the tokens that are left: all has reached DRAM
    wait matrix:0
arrays_done:
    min i, i, 2
    loop i, done
    wait fuse:0
    wait store:0
done:
    halt
more_passes:
    issue matrix
    beq r0, r0, pass_loop

; first, count: image rows that output rows oy .. end-1 need, at least one
image_rows:
    mul first, oy, $stride_h
    sub first, first, $pad_top
    sub u, end, 1
    mul u, u, $stride_h
    sub u, u, $pad_top
    add u, u, $kernel_h, -1
    sub t, $in_h, 1
    min u, u, t
    max first, first, 0
    min first, first, t
    sub count, u, first
    add count, count, 1
    max count, count, 1
    ret

; load step (load_b, load_oy) and advance; a new block brings its weights and parameters
load_step:
    bne load_oy, r0, load_x
    set load.word, space=param
    mul t, load_b, $p_block
    set load.dram, t, $p
    and t, load_b, 3                 ; four slots: the drain of block b-4 is over
    shl t, t, 4
    mul t, t, %n
    set load.dst, t
    set load.len, $p_block
    set load.y_count, 1
    set load.z_count, 1
    set load.dst_y, 0
    set load.dst_z, 0
    issue load
    set load.word, default
    mul t, load_b, $w_block
    set load.dram, t, $w
    and t, load_b, 1
    mul t, t, $w_block
    set load.dst, t, $w_sp
    set load.len, $w_block
    issue load
load_x:
    add r30, oy                      ; image_rows works on oy and end
    add r31, end
    add oy, load_oy
    add end, oy, $band_h
    min end, end, $out_h
    call image_rows
    mul t, first, $x_row
    mul u, load_b, %n
    add t, t, u
    set load.dram, t, $x
    and t, load_j, 1
    mul t, t, $x_size
    set load.dst, t, $x_sp
    set load.z_count, count
    set load.dram_z, $x_row
    set load.dst_z, $sp_row
    bne $x_whole, r0, whole
    sub t, $channels, u
    min t, t, %n
    set load.len, t
    set load.y_count, $in_w
    set load.dram_y, $channels
    set load.dst_y, $sp_pixel
    beq r0, r0, advance
whole:
    set load.len, $x_whole
    set load.y_count, 1
advance:
    issue load, signal(seq:0)
    add load_j, load_j, 1
    add load_oy, end
    add oy, r30
    blt end, $out_h, same_block
    add load_oy, 0
    add load_b, load_b, 1
same_block:
    add end, r31
    ret
