; The whole digits network in one program: 8x8 image -> conv 16 -> conv 32, maximum pool -> residual conv 32, maximum pool
; -> 10 scores. Activations never leave the scratchpad, weights stay in it, and each FUSE pass takes a layer with all that
; follows it: bias, requantization, ReLU, residual addition, pooling.
;
; Written for N = 16. Nothing here waits for the sequencer: it halts once its last commands are queued, so the next
; image is loaded and begun while this one ends. Each unit works in order, so that a layer of the next image can only
; overwrite what all readers have left; image and scores, at the two ends, have BUFFERS buffers, one more than there can
; be macro-instructions in flight.
;
; Images are stored with a border of zeros (their zero point), PITCH bytes a row: 13 bytes from one address on then hold
; the first two rows of a 3x3 window, and the first convolution takes two passes of the array instead of nine.
.name digits_fused
.signature operands: 48; semaphores at entry and exit: all zero; regions at entry and exit: weights, borders, slots 0..5
.operand image, 0         ; DRAM addresses
.operand scores, 1
.operand weights, 2       ; those of the four layers, then their parameters
.operand first, 3         ; 1: bring in weights and parameters, clear the borders
.operand buffer, 4        ; 0..BUFFERS-1, another one each time
.operand conv1_zp, 5
.operand conv2_zp, 6
.operand conv3_zp, 7
.operand add_zp, 8
.operand scores_zp, 9
.operand zp_xr, 10        ; the residual addition
.operand x_mult, 11
.operand r_mult, 12
.operand o_mult, 13
.operand r_shifts, 14
.operand number, 47       ; of the image, for the guard of the dispatch table

.equ BUFFERS, 9
.equ PITCH, 10
.equ IMAGE, 128           ; bytes of an image with its border
; scratchpad: one bank of 32 KiB for what is read at the same time
.equ IMAGES, 0x00000
.equ ACT1, 0x08000        ; 8x8x16
.equ POOL1, 0x10000       ; 4x4x32
.equ POOL2, 0x18000       ; 2x2x32
.equ W1, 0x20000          ; [2][13][16]
.equ W4, 0x20400          ; [128][16]
.equ W2, 0x28000          ; [2][3][3][16][16]
.equ W3, 0x30000          ; [2][3][3][32][16]
.equ SCORES, 0x38000
; their places behind `weights` in DRAM
.equ W1_LEN, 416
.equ W2_LEN, 4608
.equ W3_LEN, 9216
.equ W4_LEN, 2048
.equ PARAMS_AT, 16288
.equ P_LEN, 144           ; parameters of a block of channels
; accumulator rows: neighbouring layers in different banks of 256 rows
.equ ACC1, 0
.equ ACC2A, 256
.equ ACC2B, 512
.equ ACC3A, 768
.equ ACC3B, 64
.equ ACC4, 800

.reg t, r1
.reg at, r2               ; this image in the scratchpad

    seq t, %n, 16
    bne t, r0, right_size
    trap 1
right_size:
    mul at, $buffer, IMAGE
    beq $first, r0, load_image
    set load.word, fill=1            ; zeros around all images
    set load.dst, IMAGES
    set load.len, IMAGE * BUFFERS
    issue load
    set load.word, space=param
    set load.dram, $weights, PARAMS_AT
    set load.dst, 0
    set load.len, P_LEN
    set load.y_count, 6
    set load.dram_y, P_LEN
    set load.dst_y, 256
    issue load
    clear load
    set load.dram, $weights
    set load.dst, W1
    set load.len, W1_LEN
    issue load
    set load.dram, $weights, W1_LEN
    set load.dst, W2
    set load.len, W2_LEN
    issue load
    set load.dram, $weights, W1_LEN + W2_LEN
    set load.dst, W3
    set load.len, W3_LEN
    issue load
    set load.dram, $weights, W1_LEN + W2_LEN + W3_LEN
    set load.dst, W4
    set load.len, W4_LEN
    issue load
load_image:
    set load.dram, $image
    set load.dst, at, IMAGES + PITCH + 1
    set load.len, 8
    set load.y_count, 8
    set load.dram_y, 8
    set load.dst_y, PITCH
    issue load, signal(matrix:0)     ; in order: its token covers the weights

    ; first convolution: kernel rows 0 and 1 in one pass, row 2 in another
    set matrix.a_base, at, IMAGES
    set matrix.a_u, PITCH
    set matrix.a_v, 1
    set matrix.x_count, 8
    set matrix.y_count, 8
    set matrix.ky_count, 2
    set matrix.u_ky, 2
    set matrix.k_rows, 13
    set matrix.w_base, W1
    set matrix.w_row, 16
    set matrix.w_ky, 208
    set matrix.acc_base, ACC1
    set matrix.acc_x, 1
    set matrix.acc_y, 8
    issue matrix, wait(load:0), signal(fuse:0)
    ; bias, requantization, ReLU
    set fuse.src, requant=slot rounding=even bias_en=1
    set fuse.stage, d_dst=sp
    set fuse.a_base, ACC1
    set fuse.a_v, 1
    set fuse.x_count, 64
    set fuse.p_base, 0
    set fuse.zp, $conv1_zp
    set fuse.clip_lo, $conv1_zp
    set fuse.clip_hi, 127
    set fuse.d_base, ACT1
    set fuse.d_x, 16
    issue fuse, wait(matrix:0), signal(matrix:0)

    ; second convolution: a command for each half of the channels, so that one is drained while the other is computed
    set matrix.a_base, ACT1
    set matrix.a_zp, $conv1_zp
    set matrix.a_u, 128
    set matrix.a_v, 16
    set matrix.kx_count, 3
    set matrix.ky_count, 3
    set matrix.u_ky, 1
    set matrix.u0, -1
    set matrix.v0, -1
    set matrix.u_lim, 8
    set matrix.v_lim, 8
    set matrix.k_rows, 16
    set matrix.w_base, W2
    set matrix.w_kx, 256
    set matrix.w_ky, 768
    set matrix.acc_base, ACC2A
    issue matrix, wait(fuse:0), signal(fuse:0)
    set matrix.w_base, W2 + 2304
    set matrix.acc_base, ACC2B
    issue matrix, signal(fuse:0)
    ; bias, requantization, ReLU, maximum of 2x2
    set fuse.stage, d_dst=sp reduce=max
    set fuse.zp, $conv2_zp
    set fuse.clip_lo, $conv2_zp
    set fuse.x_count, 4
    set fuse.y_count, 4
    set fuse.wx_count, 2
    set fuse.wy_count, 2
    set fuse.v_x, 2
    set fuse.u_y, 2
    set fuse.a_u, 8
    set fuse.a_base, ACC2A
    set fuse.p_base, 1
    set fuse.d_base, POOL1
    set fuse.d_x, 32
    set fuse.d_y, 128
    issue fuse, wait(matrix:0)
    set fuse.a_base, ACC2B
    set fuse.p_base, 2
    set fuse.d_base, POOL1 + 16
    issue fuse, wait(matrix:0), signal(matrix:0)

    ; third convolution
    set matrix.a_base, POOL1
    set matrix.a_zp, $conv2_zp
    set matrix.a_v, 32
    set matrix.ic_count, 2
    set matrix.a_ic, 16
    set matrix.x_count, 4
    set matrix.y_count, 4
    set matrix.u_lim, 4
    set matrix.v_lim, 4
    set matrix.w_base, W3
    set matrix.w_ic, 256
    set matrix.w_kx, 512
    set matrix.w_ky, 1536
    set matrix.acc_base, ACC3A
    set matrix.acc_y, 4
    issue matrix, wait(fuse:0), signal(fuse:0)
    set matrix.w_base, W3 + 4608
    set matrix.acc_base, ACC3B
    issue matrix, signal(fuse:0)
    ; bias, requantization, residual addition, ReLU, maximum of 2x2
    set fuse.stage, d_dst=sp residual=1 reduce=max
    set fuse.zp, $conv3_zp
    set fuse.clip_lo, -128
    set fuse.zp_xr, $zp_xr
    set fuse.x_mult, $x_mult
    set fuse.r_mult, $r_mult
    set fuse.o_mult, $o_mult
    set fuse.r_shifts, $r_shifts
    set fuse.o_zp, $add_zp
    set fuse.r_lo, $add_zp
    set fuse.r_hi, 127
    set fuse.x_count, 2
    set fuse.y_count, 2
    set fuse.a_u, 4
    set fuse.a_base, ACC3A
    set fuse.p_base, 3
    set fuse.r_base, POOL1
    set fuse.r_wx, 32
    set fuse.r_wy, 128
    set fuse.r_x, 64
    set fuse.r_y, 256
    set fuse.d_base, POOL2
    set fuse.d_y, 64
    issue fuse, wait(matrix:0)
    set fuse.a_base, ACC3B
    set fuse.p_base, 4
    set fuse.r_base, POOL1 + 16
    set fuse.d_base, POOL2 + 16
    issue fuse, wait(matrix:0), signal(matrix:0)

    ; scores: one row of 128
    clear matrix
    set matrix.a_base, POOL2
    set matrix.a_zp, $add_zp
    set matrix.ic_count, 8
    set matrix.a_ic, 16
    set matrix.w_base, W4
    set matrix.w_row, 16
    set matrix.w_ic, 256
    set matrix.acc_base, ACC4
    issue matrix, wait(fuse:0), signal(fuse:0)
    set fuse.stage, d_dst=sp
    set fuse.zp, $scores_zp
    set fuse.x_count, 1
    set fuse.y_count, 1
    set fuse.wx_count, 1
    set fuse.wy_count, 1
    set fuse.lanes, 10
    set fuse.a_base, ACC4
    set fuse.p_base, 5
    shl t, $buffer, 4
    set fuse.d_base, t, SCORES
    issue fuse, wait(matrix:0), signal(store:0)
    set store.dram, $scores
    set store.src, t, SCORES
    set store.len, 10
    issue store, wait(fuse:0)
    halt
