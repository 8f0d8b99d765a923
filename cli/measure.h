/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of this machine, measured: how fast memory is read, and how many products a second its
 * instructions can do at most. Measured when first asked for; what else the machine does can only
 * hide the limit, so the best rate ever seen counts. Of a GPU: what it is rated for. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "cli.h"

/* PEAK_INT4: int8 by codes of at most 7 bits, whose products leave room in 16 bits; the same as
 * PEAK_INT8 where an instruction adds to 32 bits. PEAK_F16: of a GPU's tensor cores, alone; it has
 * the other floats' place there. */
enum peak { PEAK_F32, PEAK_BF16, PEAK_INT8, PEAK_INT4, PEAK_F16 };

/* Threads that read and compute for the limits: the context's, but no more than there are CPUs. */
int measure_threads(const qn_ctx *ctx);
/* Bytes a second that these read from a buffer larger than the caches. */
double measure_bandwidth(const qn_ctx *ctx);
/* Operations a second (a product and a sum are two) of the best instruction of the context's ISA;
 * f32 multiply-add, bf16 pairs into f32, products of codes into int32. */
double measure_peak(const qn_ctx *ctx, enum peak peak);
/* Try once more, briefly: rates can only grow. Between cases, so that all are judged alike. */
void measure_again(const qn_ctx *ctx);
const char *peak_name(enum peak peak);
/* The instruction that a peak was measured with: "vpdpbusd zmm". */
const char *peak_instruction(const qn_ctx *ctx, enum peak peak);
/* Float products, or int8? */
int is_float_strategy(qn_strategy strategy);
/* The peak that a kernel of this name and strategy is held to, with codes of so many bits. Never
 * PEAK_INT4 where it is the same as PEAK_INT8. */
enum peak peak_of(const qn_ctx *ctx, qn_strategy strategy, int bits, const char *kernel);
/* What weights must exceed to be read from memory: 1.25 times a last level cache for each thread,
 * at most 512 MiB (as much as there is sense in waiting for); of a GPU, whose cache keeps what is
 * used again rather than what is new, eight times. */
size_t rotation_bytes(const qn_ctx *ctx);

/* The buffer that bandwidth is measured with: so many floats, finite, all the same. NULL on a
 * GPU. */
const float *measure_memory(const qn_ctx *ctx, size_t *floats);
/* What a product takes by plain C loops over f32 weights, on the threads of measure_threads();
 * measured on some of the outputs. 0: not on this device. */
double plain_seconds(const qn_ctx *ctx, int64_t m, int64_t n, int64_t k);

/* "2026-11-23 11:20 UTC". */
enum { DATE_TEXT = 32 };
const char *date_words(char text[DATE_TEXT]);
/* Processes that want a CPU, on the average of the last minute; below 0: unknown. */
double load_average(void);

/* The CPU's "model name" as the system tells it, or "". */
void cpu_model(char *out, size_t capacity);
/* "Intel(R) Xeon(R) Processor, family 6 model 207, 2 CPUs", or the name of the GPU: what a figure
 * was measured on. */
void machine_words(const qn_ctx *ctx, char *out, size_t capacity);

/* One loop of a peak: `rounds` times some independent operations; returns how many in all. */
typedef double peak_loop(long rounds);
struct peak_row {
    enum peak peak;
    uint64_t needs; /* QN_ISA_ bits */
    const char *instruction;
    peak_loop *loop;
};
/* Within a peak, the last row needs nothing. loop NULL ends the list. */
extern const struct peak_row peak_rows[];

#endif
