/* SPDX-License-Identifier: Apache-2.0 */
/* What an importer is: one file that turns some tensors of a checkpoint into a canonical weight.
 * It sees tensors and the configuration, never kernels, layouts or paths. importers.inc is the list
 * of all, and the order in which they are asked; docs/checkpoints.md says how to add one.
 *
 * An importer is asked three things:
 *   heads   Is this tensor the first of one of your modules? Names, types and shapes of tensors may
 *           be looked at, data not. Said in the tables below where the name decides.
 *   find    What is the module? Format, shape, where each fact comes from. A few KiB of data may be
 *           read to tell conventions apart. What is ambiguous or not held exactly is refused here,
 *           with words that name the option or the reason.
 *   load    Fill the arrays of a weight with rows [first, first + w->n) of the module.
 * Everything a hostile file can do must end in a refusal: find checks that every tensor that load
 * reads has the type and the shape it must have, and load trusts find. What load fills is checked
 * as qn_weight_create() checks it (finite scales, codes in range, a permutation). */
#ifndef QNI_CHECKPOINT_IMPORT_H
#define QNI_CHECKPOINT_IMPORT_H

#include <quern/checkpoint.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../quant/canonical.h"
#include "../graph.h"

struct qni_tensor { /* of a checkpoint; data NULL: it is not there */
    const char *name, *spelling;
    qn_dtype dtype;
    int32_t rank;
    int64_t shape[QN_MAX_RANK];
    const uint8_t *data; /* may be unaligned */
    size_t bytes;
};

enum { QNI_MOST_PARTS = 12, QNI_PROVENANCE = 2048, QNI_STEM = 512 };

/* Lines of text about where facts come from. What does not fit is left out. */
struct qni_notes {
    char text[QNI_PROVENANCE];
    size_t used;
};
void qni_note(struct qni_notes *notes, const char *format, ...) QNI_PRINTF(2, 3);

struct qni_found {
    qn_weight_parts parts; /* format, n, k, geometry; the table of QN_CODE_TABLE */
    qn_role role;
    int64_t experts;                         /* n counts all of them; 1 where there are none */
    bool has_perm, has_prescale, has_supers; /* load fills what quern/weights.h calls super_scale
                                                and its kin */
    qn_activation activation;
    float input_scale;
    int32_t input_zero;
    struct qni_tensor part[QNI_MOST_PARTS]; /* in the order of the importer's list */
    int64_t fact[8];                        /* the importer's own, from find for load */
    float table[256];
    const qn_file *file;         /* of quern: where it lies, its name, */
    int64_t first_k;             /* and the first of parts.k columns; 0 of a whole weight */
    const struct qni_link *link; /* of graphs: what the node says */
    char stem[QNI_STEM];
    struct qni_notes notes;
};

/* Groups whose scale or offset f32 cannot hold exactly. */
struct qni_rounding {
    int64_t groups, rounded;
};

struct qni_importer {
    const char *name;
    /* Endings of the names of a module's tensors, the head's first; NULL ends the list. The name
     * before the ending is the stem. "" as the only one: the whole name is the module's. None at
     * all: nodes of a graph name them (graph.h), and the parts are those of its links. */
    const char *parts[QNI_MOST_PARTS + 1];
    /* What follows the stem in the weight's name: ".weight" or "". */
    const char *named;
    /* NULL: the ending decides. */
    bool (*heads)(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem);
    /* The parts are filled in already. */
    qn_status (*find)(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err);
    qn_status (*load)(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err);
    /* Of each part, the dimension that its codes, or its values for each group, run along: 1: the
     * first, 2: the last, 0: none. All 0: parts are not cut along k (cut.h). What load takes from
     * parts that can be cut it takes from their shapes, not from fact[]. */
    int8_t along_k[QNI_MOST_PARTS];
    /* NULL: always. */
    bool (*can_cut)(const struct qni_found *found);
};

#define QNI_IMPORTER(name) extern const struct qni_importer qni_import_##name;
#include "importers.inc"
#undef QNI_IMPORTER

/* Plain tensors that load as weights all the same (floats.c): fills parts, false if it is none. */
extern const struct qni_importer qni_import_floats;
bool qni_import_find_floats(struct qni_found *found);

/* ---- what importers ask of a checkpoint ------------------------------------------------------ */

/* The tensor stem + ending; false and data NULL if there is none. */
bool qni_checkpoint_part(const qn_checkpoint *c, const char *stem, const char *ending,
                         struct qni_tensor *tensor);
/* The node of a key in the configuration of quantized weights (quant_method and others), or -1. */
int32_t qni_checkpoint_setting(const qn_checkpoint *c, const char *key);
const struct qni_settings *qni_checkpoint_settings(const qn_checkpoint *c);
/* Where that configuration stands, for provenance; "" if there is none. */
const char *qni_checkpoint_origin(const qn_checkpoint *c);
/* quant_method; "" if nothing says it. */
const char *qni_checkpoint_method(const qn_checkpoint *c);
const qn_checkpoint_options *qni_checkpoint_get_options(const qn_checkpoint *c);
const struct qni_allocator *qni_checkpoint_allocator(const qn_checkpoint *c);
/* The file a module's head lies in. */
const qn_file *qni_checkpoint_file_of(const qn_checkpoint *c, const char *tensor);

/* ---- tools for importers --------------------------------------------------------------------- */

/* QN_OK if the tensor has that type and shape (rank 2; a rank of 1 where b is 1). What: its ending,
 * for the sentence. */
qn_status qni_import_expect(const struct qni_tensor *t, const char *what, int64_t a, int64_t b,
                            qn_error *err);
/* One element of a float tensor (f32, f16, bf16, e4m3, e8m0). */
float qni_import_float(const struct qni_tensor *t, int64_t i);
bool qni_import_is_float(qn_dtype dtype);
/* Word i of the tensor's data, as it lies. */
static inline uint32_t qni_import_u32(const struct qni_tensor *t, int64_t i)
{
    uint32_t word;
    memcpy(&word, t->data + 4 * i, sizeof word);
    return word;
}
int64_t qni_import_int(const struct qni_tensor *t, int64_t i);
/* Count x as rounded if f32 does not hold it exactly. */
float qni_import_round(double x, struct qni_rounding *r);

/* Work on rows of a weight by the context's threads: take(arg, i) for i in [0, n); counts of
 * rounding are summed. */
typedef void qni_import_row_fn(const void *arg, int64_t i, struct qni_rounding *rounding);
void qni_import_rows(const qn_ctx *ctx, int64_t n, qni_import_row_fn *take, const void *arg,
                     struct qni_rounding *rounding);

/* Calls take(arg, i) for each row of w; arg is a struct qni_source. Row 0 of w is row `first` of
 * what was found. */
struct qni_source {
    const struct qni_found *f;
    struct qn_weight *w;
    int64_t first;
};
void qni_import_weight(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                       struct qn_weight *w, qni_import_row_fn *take, struct qni_rounding *rounding);

/* ---- act-order (order.c) --------------------------------------------------------------------- */

struct qni_order {
    int64_t k, group, groups;
};
/* What a vector of integers [k], or none, says of the columns: TRIVIAL is k / group. */
typedef int32_t qni_order_kind;
enum { QNI_ORDER_NONE, QNI_ORDER_TRIVIAL, QNI_ORDER_ZERO, QNI_ORDER_GROUPS };
qni_order_kind qni_import_order_of(const struct qni_tensor *g, const struct qni_order *order);
/* perm [k]: columns in the stable order of their groups. @return QN_OK; QN_E_VALUE; QN_E_FORMAT: a
 * group has not its number of columns; QN_E_MEMORY. */
qn_status qni_import_sort_columns(const qn_ctx *ctx, const struct qni_tensor *g,
                                  const struct qni_order *order, int32_t *perm, qn_error *err);

/* ---- scales of whole rows, groups or tensors (scales.c) -------------------------------------- */

/* Set the format's group from the shape of a scale for [n, k]: [] or [1] per tensor, [n] or [n, 1]
 * per channel, [n, groups] in groups of `group` (0: k over the groups). */
qn_status qni_import_group_of_scale(const struct qni_tensor *scale, int64_t group,
                                    struct qni_found *found, qn_error *err);
/* Where in a scale of that shape the value of row n, group g stands. */
int64_t qni_import_scale_at(const struct qn_weight *w, int64_t n, int64_t g);

/* ---- compressed-tensors' configuration (scheme.c) -------------------------------------------- */

/* The single group of the configuration that is about weights of that type ("int", "float") and,
 * where bits is positive, of so many bits; -1: none, -2: several that differ. */
int32_t qni_scheme_weights(const qn_checkpoint *c, const char *type, int64_t bits);
/* Fill in what the configuration and input_scale say about activations. */
void qni_scheme_activation(const qn_checkpoint *c, const struct qni_tensor *scale,
                           const struct qni_tensor *zero, struct qni_found *found);

#endif
