/* SPDX-License-Identifier: Apache-2.0 */
/* What the tile kernels share: which tile a CTA has, where its rows of x are, and how it is
 * launched. A CTA works on one tile, outputs x rows, of one part or one expert; tiles of the same
 * rows run side by side, so that x and weights come out of L2. */
#ifndef QNI_CUDA_MATMUL_TILE_CUH
#define QNI_CUDA_MATMUL_TILE_CUH

#include <cuda_runtime.h>

#include "../kernel.h"
#include "../ptx.cuh"

/* Row tiles that are worked on before the next ones begin: 8 of 64 rows of 4096 halves are 4 MB,
 * which L2 keeps while all weights pass. */
enum { TILE_BAND = 8 };

struct tile_args {
    struct qni_cuda_product p;
    struct qni_cuda_experts experts; /* n 0: none */
    int32_t row_tiles, output_tiles; /* of a part */
    int32_t stages;
};

struct tile_place {
    const uint8_t *blob;
    int32_t part, expert;
    int32_t panel;       /* the first, of all parts */
    int32_t panels;      /* that exist */
    int32_t output;      /* the first, of the part */
    int32_t first, rows; /* the first of routes.rows, or of the part; rows 0: nothing to do */
};

static __device__ __forceinline__ struct tile_place tile_place_of(const struct tile_args &a,
                                                                  int32_t panels, int32_t rows)
{
    const struct qni_cuda_weights &w = a.p.w;
    struct tile_place at = {w.blob, 0, 0, 0, 0, 0, 0, 0};
    uint32_t id = blockIdx.x;
    const uint32_t of_part = (uint32_t)(a.row_tiles * a.output_tiles);
    at.part = (int32_t)(id / of_part);
    id -= (uint32_t)at.part * of_part;
    const uint32_t band = id / (uint32_t)(TILE_BAND * a.output_tiles);
    const int32_t band_rows = min((int32_t)TILE_BAND, a.row_tiles - (int32_t)band * TILE_BAND);
    id -= band * (uint32_t)(TILE_BAND * a.output_tiles);
    const int32_t tile = (int32_t)(id / (uint32_t)band_rows);
    const int32_t row_tile = (int32_t)band * TILE_BAND + (int32_t)id - tile * band_rows;
    at.panel = at.part * w.panels + tile * panels;
    at.panels = min(panels, w.panels - tile * panels);
    at.output = tile * panels * QNI_CUDA_PANEL;
    if (a.p.routes.tiles == NULL) {
        at.first = row_tile * rows;
        at.rows = (int32_t)min((int64_t)rows, a.p.m - at.first);
        return at;
    }
    const int32_t *const route = a.p.routes.tiles + 3 * row_tile;
    at.expert = route[0];
    at.first = route[1];
    at.rows = route[2];
    if (a.experts.n > 0) {
        const int32_t e = at.expert - a.experts.first;
        if (e < 0 || e >= a.experts.n)
            at.rows = 0;
        else
            at.blob = a.experts.blob[e];
    }
    return at;
}

/* Rows of x of the tile, -1 where it has none. A barrier must follow. */
static __device__ __forceinline__ void
tile_rows(const struct tile_args &a, const struct tile_place &at, int32_t *row_of, int32_t rows)
{
    for (int32_t i = (int32_t)threadIdx.x; i < rows; i += (int32_t)blockDim.x) {
        int32_t r = at.first + i;
        if (i < at.rows && a.p.routes.rows != NULL)
            r = a.p.routes.rows[r];
        row_of[i] = i < at.rows ? at.part * (int32_t)a.p.x.part_rows + r : -1;
    }
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* A stage is, for each slice of k, 128 bytes of every row and as many positions of codes:
 *
 *     [slices][rows][8 pieces of 16 bytes]     piece c of row r at c ^ swizzle(r)
 *     [slices][panels][run pieces]
 *
 * Slice q has the stages [q * per, (q + 1) * per) of k, each of them once for every plane of x.
 * Offsets in memory count pieces, so that 32 bits are enough for 64 GB. What a thread copies is as
 * far as possible worked out before the loop, and kept: warps that take long to ask for their next
 * stage are late for this one. */
enum { TILE_NO_ROW = -1, TILE_ROWS_EACH = 4 };

struct tile_feed {
    const uint8_t *codes; /* of the first panel */
    const uint8_t *x;
    uint32_t to, stage_bytes; /* shared memory of the stages */
    int32_t per, planes, panels;
    uint32_t panel_pieces; /* of a whole panel */
    uint32_t row_bytes;    /* of a row of x that may be read */
    int32_t turn, plane;   /* that come next */
    /* of the thread's first piece: place in its panel, the panel's begin, the panel */
    uint32_t code_at, code_base, code_panel, code_to;
    uint32_t x_to, x_piece;
    uint32_t row[TILE_ROWS_EACH]; /* offsets of the rows that it copies pieces of, or NO_ROW */
};

/* How a tile is cut: constants. run: pieces of codes of a panel and stage. */
template <int PANELS, int SLICES, int RUN>
static __device__ __forceinline__ void tile_begin_codes(struct tile_feed &f, uint32_t at)
{
    const uint32_t line = threadIdx.x / RUN, piece = threadIdx.x % RUN;
    const uint32_t panel = line % PANELS, q = line / PANELS;
    f.code_at = ptx_keep(q * (uint32_t)f.per * RUN + piece);
    f.code_panel = ptx_keep(panel);
    f.code_base = ptx_keep(panel * f.panel_pieces);
    f.code_to = ptx_keep(f.to + at + threadIdx.x * 16);
}

template <int PANELS, int SLICES, int RUN, int THREADS>
static __device__ __forceinline__ void tile_copy_codes(const struct tile_feed &f, int32_t slot)
{
    constexpr int lines = THREADS / RUN;
    const uint32_t to = f.code_to + (uint32_t)slot * f.stage_bytes;
#pragma unroll
    for (int j = 0; j * lines < SLICES * PANELS; j++) {
        const uint32_t panel = (uint32_t)(j * lines % PANELS), q = (uint32_t)(j * lines / PANELS);
        const uint32_t at = f.code_at + (q * (uint32_t)f.per + (uint32_t)f.turn) * RUN;
        const bool valid =
            at < f.panel_pieces && f.turn < f.per && f.code_panel + panel < (uint32_t)f.panels;
        const uint32_t from = valid ? f.code_base + panel * f.panel_pieces + at : 0;
        ptx_copy16(to + (uint32_t)(j * THREADS * 16), f.codes + (uint64_t)from * 16, valid);
    }
}

/* swizzle: of the row that this thread copies pieces of; the same for all of them. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void tile_begin_rows(struct tile_feed &f,
                                                       const struct qni_cuda_rows &x,
                                                       const int32_t *row_of, uint32_t swizzle)
{
    constexpr int lines = THREADS / 8;
    static_assert(ROWS <= lines * TILE_ROWS_EACH, "room for the rows of a thread");
    const uint32_t line = threadIdx.x / 8, piece = threadIdx.x % 8;
    f.x_to = ptx_keep(f.to + line * 128 + ((piece ^ swizzle) << 4));
    f.x_piece = ptx_keep(piece);
#pragma unroll
    for (int j = 0; j * lines < ROWS; j++) {
        const int32_t row = row_of[(int32_t)line + j * lines];
        f.row[j] = ptx_keep(row < 0 ? (uint32_t)TILE_NO_ROW : (uint32_t)(row * (x.lda / 16)));
    }
}

template <int ROWS, int SLICES, int THREADS>
static __device__ __forceinline__ void tile_copy_x(const struct tile_feed &f,
                                                   const struct qni_cuda_rows &x, int32_t slot)
{
    constexpr int lines = THREADS / 8;
    const uint32_t to = f.x_to + (uint32_t)slot * f.stage_bytes;
    const uint8_t *const from = f.x + f.plane * x.plane_stride;
#pragma unroll
    for (int j = 0; j * lines < SLICES * ROWS; j++) {
        const int q = j * lines / ROWS;
        const uint32_t piece = ((uint32_t)(q * f.per) + (uint32_t)f.turn) * 8 + f.x_piece;
        const uint32_t row = f.row[j % (ROWS / lines)];
        const bool valid =
            piece * 16 < f.row_bytes && f.turn < f.per && row != (uint32_t)TILE_NO_ROW;
        const uint8_t *const at = from + (uint64_t)(valid ? row + piece : 0) * 16;
        if (valid && piece * 16 + 16 > f.row_bytes)
            ptx_copy16_part(to + (uint32_t)(j * lines * 128), at, (int)(f.row_bytes - piece * 16));
        else
            ptx_copy16(to + (uint32_t)(j * lines * 128), at, valid);
    }
}

static __device__ __forceinline__ void tile_next(struct tile_feed &f)
{
    f.plane++;
    if (f.plane == f.planes) {
        f.plane = 0;
        f.turn++;
    }
}

/* Copies of all stages but one may be on their way when the oldest is wanted. */
static __device__ __forceinline__ void tile_wait(int32_t stages)
{
    if (stages == 2)
        ptx_copies_wait<0>();
    else if (stages == 3)
        ptx_copies_wait<1>();
    else
        ptx_copies_wait<2>();
}

/* Sums leave through the memory of the stages, [rows][tile_ld]: what a warp writes falls into 32
 * banks. */
static __host__ __device__ constexpr int32_t tile_ld(int32_t panels)
{
    return panels * QNI_CUDA_PANEL + 4;
}

/* Stages of a CTA, so that two of them have room on a multiprocessor. sm_75 copies when it is told
 * to, and has no use for more than two. */
static inline int32_t tile_stages(int32_t sm, int32_t stage_bytes, int32_t fixed_bytes)
{
    enum { RESERVED = 1024 /* by the system, of every CTA */ };
    const int32_t kilobytes = sm == 80 || sm == 87                ? 164
                              : sm == 86 || sm == 89 || sm >= 120 ? 100
                                                                  : 228;
    const int32_t stages = (kilobytes * 512 - RESERVED - fixed_bytes) / stage_bytes;
    return sm < 80 || stages < 2 ? 2 : stages > 4 ? 4 : stages;
}

/* shape: outputs and rows of a tile. stage_bytes of dynamic shared memory a stage, 2 to 4 of them,
 * beside fixed_bytes of static. */
struct tile_shape {
    int32_t panels, rows, threads;
    int32_t stage_bytes, fixed_bytes;
};

static inline int32_t tile_launch(const void *kernel, const struct tile_shape *shape,
                                  const struct qni_cuda_product *product,
                                  const struct qni_cuda_experts *experts,
                                  const struct qni_cuda_launch *launch)
{
    struct tile_args args = {};
    args.p = *product;
    if (experts != NULL)
        args.experts = *experts;
    const int64_t row_tiles = product->routes.tiles != NULL
                                  ? product->routes.n_tiles
                                  : (product->m + shape->rows - 1) / shape->rows;
    args.row_tiles = (int32_t)row_tiles;
    args.output_tiles = (product->w.panels + shape->panels - 1) / shape->panels;
    const int64_t grid = row_tiles * args.output_tiles * product->w.parts;
    if (grid == 0)
        return 0;
    args.stages = tile_stages(launch->sm, shape->stage_bytes, shape->fixed_bytes);
    const int32_t tile_bytes = shape->rows * tile_ld(shape->panels) * 4;
    const int32_t stages_bytes = args.stages * shape->stage_bytes;
    const int32_t bytes = stages_bytes > tile_bytes ? stages_bytes : tile_bytes;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return (int32_t)cudaGetLastError();
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = dim3((unsigned)shape->threads);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = (cudaStream_t)launch->stream;
    config.attrs = &attribute;
    config.numAttrs = launch->pdl && launch->sm >= 90 ? 1 : 0;
    void *list[1] = {&args};
    (void)cudaLaunchKernelExC(&config, kernel, list);
    return (int32_t)cudaGetLastError();
}

/* The two rows of kernels.inc for this reads and layout, of a file that has
 * launch_tile<READS, KIND, TILE>. */
#define TILE_LAUNCHERS(reads, layout, READS, KIND)                                                 \
    extern "C" int32_t qni_matmul_##reads##_##layout##_mr32_sm75(                                  \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *launch)                                                      \
    {                                                                                              \
        return launch_tile<READS, KIND, TILE32>(product, experts, launch);                         \
    }                                                                                              \
    extern "C" int32_t qni_matmul_##reads##_##layout##_mr64_sm75(                                  \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *launch)                                                      \
    {                                                                                              \
        return launch_tile<READS, KIND, TILE64>(product, experts, launch);                         \
    }

#endif
