/* SPDX-License-Identifier: Apache-2.0 */
/* quern convert --to another program's format: a folder as Hugging Face's programs read it, or a
 * GGUF file. Everything is made beside the result, in RESULT.part/, read back from there, compared
 * with the source value by value, and only then renamed. */
#ifndef CLI_EXPORT_H
#define CLI_EXPORT_H

#include "graph.h"
#include "names.h"
#include "output.h"
#include "term.h"

enum { MOST_TENSORS = 8, KIND_TEXT = 32 };

struct tensor_plan { /* a tensor of the target */
    char *name;
    qn_dtype dtype;
    char type[KIND_TEXT]; /* of blocks; "" else */
    int32_t rank;
    int64_t shape[QN_MAX_RANK];
    size_t bytes;
    int64_t index; /* in its writer */
};

struct piece { /* a module of the source on its way */
    int64_t module;
    const char *name; /* in the source */
    char *target;     /* the weight's or tensor's name in the target */
    enum { PIECE_COPY, PIECE_EXPORT, PIECE_DENSE } how;
    int64_t heads; /* rows change their order; 0: they do not */
    int shift;     /* added to each value: 1, -1 or 0 */
    struct tensor_plan tensors[MOST_TENSORS];
    int n_tensors, shard;
    double bytes; /* in the source */
    qn_activation activation;
    float input_scale;
    int32_t input_zero;
    char kind[KIND_TEXT];
    int bits, is_symmetric, has_order, is_requantized;
    int64_t group, k; /* columns a group, -1: a row; columns */
    int32_t kh, kw, conv_groups;
    /* Within a graph: what takes the weight, whether by DequantizeLinear, the type of its scales,
     * whether there is just one. */
    const struct graph_weight *weight;
    int is_pair, is_one_scale;
    qn_dtype scale_dtype;
};

struct export {
    const struct args *args;
    qn_ctx *ctx;
    qn_checkpoint *model, *made; /* made: the target, opened again */
    const char *source, *out;    /* paths */
    const char *folder;          /* with config.json and other files; NULL: there is none */
    char *part;                  /* "OUT.part" */
    const char *target;          /* "awq", "gguf:q4_0" */
    int to_file; /* not a folder */
    qn_file *gguf_file;      /* that the names and metadata of the source are of, beside it */
    const qn_file *metadata; /* of GGUF: of that file, or of the source; NULL: neither is one */
    int to_gguf, to_onnx, from_gguf, is_quiet, is_json, is_requantized, is_all;
    struct model_facts facts;
    cJSON *config;
    char *config_text; /* of which it was made, or NULL */
    struct piece *pieces;
    int64_t n_pieces, n_weights, n_dense;
    struct graph *graph; /* of the ONNX model whose other nodes stay; NULL: there is none */
    qn_checkpoint *graph_model; /* that model, for its external data */
    const char *graph_path;
    const char *gguf_path;
    struct rewriting *rewriting;
    int64_t group; /* for all modules; 0: each its own */
    int n_shards;
    double bytes;
    qn_format format; /* of --requantize */
    struct progress progress;
};

/* What is asked for. */
struct export_request {
    const char *target, *source, *out; /* out NULL: only look whether it can be held */
    const char *folder;                /* NULL: the source, if it is one */
    const char *graph;                 /* an ONNX model whose graph is kept, or NULL */
    const char *gguf; /* a GGUF file that the source was made of and is called as, or NULL */
    int64_t group;                     /* 0: the model's own */
    int is_all;                        /* --include and --exclude do not count */
};
/* `quern convert --to TARGET`. 0 or the exit status. */
int export_run(const struct args *args, const char *target);
int export_files(const struct args *args, const struct export_request *request);
/* Is there such a target, and can OUT be made? Asked before long work. 0 or the exit status. */
int export_check(const struct args *args, const char *target, const char *out);
/* Is it a file of that kind? */
int path_is(const char *path, qn_file_kind kind);
/* "model/" as "model"; to be freed. */
char *export_place(const char *out);
/* The format that a target is usually quantized to; NULL: there is no such target. */
const char *export_usual_format(const char *target);

/* export_weights.c: a module's weight in the order of the target's rows, exactly as the source has
 * it. 0 or the exit status. */
int export_load(struct export *e, const struct piece *piece, qn_weight **weight);
/* export_piece() plans the tensors of a piece and calls `put` for each of them. */
typedef int put_fn(struct export *e, struct piece *piece, int i, const qn_tensor *tensor);
int export_piece(struct export *e, struct piece *piece, put_fn *put);
/* Piece i is written, or failed with this status: the bar moves, a line in a log says so. */
void export_progress(struct export *e, int64_t i, int status);
/* Is what was written what the source says? 0 or the exit status. */
int export_verify(struct export *e, struct piece *piece);

/* export_config.c: config.json (and the like) of the target, the index, other files. */
int export_read_config(struct export *e);
int export_write_config(struct export *e);
/* export_gguf.c: metadata of a GGUF target, into its writer. */
int export_metadata(struct export *e, qn_writer *writer);
/* export_rope.c: what config.json says of rotations, of layers that see all of a text; or NULL. */
const cJSON *export_rope(const cJSON *config);
/* The keys that say how they are scaled. */
qn_status export_put_rope(const struct export *e, qn_writer *writer, qn_error *err);
/* A number that Python reads as a float, as transformers insists: 30.0. */
void export_put_float(cJSON *object, const char *key, double value);
/* The other way: rope_scaling in a config.json made of a GGUF source. */
void export_rope_of_gguf(const struct export *e, cJSON *config);
/* What frequencies are divided by, where a tensor says that; to be freed, or NULL. */
float *export_rope_factors(const struct export *e, int64_t *count);
/* export_graph.c: a model whose graph is kept. Open it. 0 or the exit status. */
int graph_begin(struct export *e);
void graph_end(struct export *e);
/* Is the module a weight in the graph that is to become another? Fills in the piece. */
int graph_takes(const struct export *e, const qn_module *module, struct piece *piece);
/* A tensor of a pair in the order in which the nodes take it: new memory, to be freed, or NULL: as
 * it is. */
void *graph_turn(const struct piece *piece, qn_tensor *tensor, int bits);
/* When all pieces are planned: what becomes of each node. 0 or the exit status. */
int graph_plan(struct export *e);
/* Do tensors that are carried along lie outside the model? */
int graph_is_external(const struct export *e);
/* Bytes of the graph beside the new tensors. Data that are carried along begin at `offset` of the
 * file `location`. */
uint64_t graph_bytes(const struct export *e, const char *location, uint64_t offset);
/* What stands before the new tensors; all of the graph takes so many bytes. Then what stands after
 * them, with external data. is_check: it is read from the files and compared instead. 0: it
 * differs. */
int graph_front(const struct export *e, uint64_t bytes, FILE *model, int is_check);
int graph_back(const struct export *e, const char *location, uint64_t offset, FILE *model,
               FILE *data, int is_check);

/* export_onnx.c: a tensor's type as ONNX numbers it. Where its data begin in the file beside the
 * model, and what the message of the tensor says of that. An attribute of a node, an integer. */
int onnx_data_type(const struct tensor_plan *plan);
uint64_t onnx_place(uint64_t offset);
void onnx_put_place(struct message *tensor, const char *location, uint64_t offset, uint64_t bytes);
void onnx_put_attribute(struct message *node, const char *name, int64_t value);

/* export_onnx.c: the whole model at `path`, in the part folder, and its data beside it where they
 * are external; where these are. To be freed. */
int export_write_onnx(struct export *e, const char *path);
char *export_onnx_data(const struct export *e);
/* Is what was carried along in it, byte by byte? 0 or the exit status. */
int export_verify_onnx(struct export *e, const char *path);
/* config.json from the metadata of a GGUF source. */
cJSON *export_config_of_gguf(const struct export *e);

#endif
