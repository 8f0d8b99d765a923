/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that a command reads: one file, several, a folder or an index of shards, or one tensor as
 * FILE:NAME. */
#ifndef CLI_SOURCE_H
#define CLI_SOURCE_H

#include "cli.h"
#include "graph.h"

struct source_tensor {
    qn_entry entry;
    const char *name; /* npy: the file's name without its ending */
    const qn_file *file;
};

struct source {
    qn_file **files;
    char **paths;
    int n_files;
    struct source_tensor *tensors;
    int64_t n_tensors;
    char **texts;
    int n_texts;
    /* Of an ONNX model, whose tensors may lie in several files: it, and its graph; else NULL. */
    qn_checkpoint *model;
    struct graph *graph;
};

/* Is there a folder of that name? */
int path_is_folder(const char *path);
/* Is it a folder or an index, which may stand for several files? */
int is_several_files(const char *path);
/* Open every path; a folder means its model.safetensors.index.json or model.safetensors, else all
 * of its .safetensors, and an index its shards. A name may not come twice. 0 or the exit status;
 * source_close() in any case. */
int source_open(struct source *s, qn_ctx *ctx, char *const *paths, int n_paths);
void source_close(struct source *s);
/* NULL if there is none of that name. */
const struct source_tensor *source_find(const struct source *s, const char *name);

/* A tensor, or quantized weights, of a file: "FILE:NAME", or FILE alone if it holds just one. */
struct picked {
    char *path, *name; /* name "": the only one */
    qn_file *file;
};
int pick_open(struct picked *p, qn_ctx *ctx, const char *text);
void pick_close(struct picked *p);
/* The plain tensor that was picked. 0 or the exit status. */
int pick_entry(const struct picked *p, qn_entry *entry);
/* Is there a quantized weight of that name (or just one at all)? Its name, or NULL. */
const char *pick_weight(const struct picked *p);

/* Does the file hold quantized weights of that name? By search: models of experts have 10^5. */
int has_weight(const qn_file *file, const char *name);
/* Is the tensor a part of one of them ("NAME.codes", "NAME.scale", ..., docs/formats.md)? */
int is_part_of_weight(const qn_file *file, const char *tensor);

/* Can the mapped bytes be used as they are: aligned, and in C's order? An npy of a transposed array
 * has Fortran's. */
int entry_is_plain(const qn_entry *entry);

/* Copies the tensor (any float or integer type the library reads) to new memory as `dtype`. The
 * result's data is to be freed. 0 or the exit status. */
int entry_load(const char *what, const qn_entry *entry, qn_dtype dtype, qn_tensor *out);

/* Loads an entry as rows: [n, k] with everything but the first dimension flattened; convolution
 * weights (4-d, OIHW) are turned to O, kh, kw, I as the library has them. */
int entry_load_rows(const char *what, const qn_entry *entry, qn_dtype dtype, qn_tensor *out);

/* "4096 x 14336", "scalar", "?". Written to text, which is returned. */
enum { SHAPE_TEXT = 96 };
const char *shape_text(const qn_tensor *tensor, char text[SHAPE_TEXT]);

#endif
