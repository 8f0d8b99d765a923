/* SPDX-License-Identifier: Apache-2.0 */
/* Files: reading tensors (safetensors, npy, GGUF, ONNX, MNN), checkpoints of other programs,
 * writing tensors safely, and keeping weights in them.
 *
 * Readers map the file and trust nothing in it. Writers work on "<path>.part" and rename at the
 * end, so a reader never sees half a file. A quern file is a safetensors file: docs/formats.md says
 * what is in it. */
#ifndef QUERN_CHECKPOINT_H
#define QUERN_CHECKPOINT_H

#include "base.h"
#include "context.h"
#include "weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------- reading */

typedef struct qn_file qn_file;

typedef int32_t qn_file_kind;
enum {
    QN_FILE_SAFETENSORS = 1,
    QN_FILE_NPY = 2,
    QN_FILE_GGUF = 3,
    QN_FILE_ONNX = 4,
    QN_FILE_ONNX_DATA = 5, /**< External data of an ONNX model, as qn_checkpoint_open() opens them:
                               the model says what is in them. */
    QN_FILE_MNN = 6,
    QN_FILE_MNN_DATA = 7  /**< Weights of an MNN model in MODEL.weight, likewise. */
};

/** A tensor of a file. Texts and data belong to the file. */
typedef struct qn_entry {
    const char *name;      /**< "" for npy. */
    qn_tensor tensor;      /**< Contiguous view of the mapped bytes; dtype QN_DTYPE_NONE if the
                                library has no such type: then data are `bytes` of the file's. */
    const char *dtype;     /**< As the file spells it. */
    int64_t offset;        /**< Byte of the file where the data begins; -1: the file has the numbers
                                in another form (ONNX's repeated fields). */
    size_t bytes;
    int32_t is_aligned;    /**< 0: data is not aligned for its type; use qn_entry_copy(). */
    int32_t reserved;
} qn_entry;

/**
 * Map a file and check all of its header. The kind is found from the content. The metadata of a
 * GGUF file are texts, too: numbers in decimal, of arrays how long they are. Files of other kinds
 * (TensorFlow Lite, archives, pickles, HTML pages, Git LFS pointers) are QN_E_CORRUPT; err
 * then says what the file is and, after a semicolon, what to do.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_OPEN; QN_E_READ; QN_E_CORRUPT: err has the byte and the
 *         reason; QN_E_DTYPE: an npy file of big-endian numbers or of objects; QN_E_MEMORY.
 */
QN_API qn_status qn_file_open(const qn_ctx *ctx, const char *path, qn_file **file, qn_error *err);

/** Where a file lies in what is opened, and how its pages are kept. Set by _init(). */
typedef struct qn_file_options {
    size_t size;
    int64_t offset;        /**< Byte where the file begins: a member of an archive that is not
                                compressed, a tensor file inside another. Default 0. */
    int64_t bytes;         /**< How long it is; -1 (default): up to the end. */
    int32_t prefetch;      /**< 1: ask the system to read all of it ahead. A wish, never a failure.
                                Default 0. */
    int32_t lock;          /**< 1: its pages stay in memory until the last user is done; where the
                                system's limit forbids that, QN_E_MEMORY. Default 0. */
    qn_release_fn release; /**< Of qn_file_open_memory(): called with release_arg when the file and
                                all packed weights that use its bytes are gone, and never by a call
                                that fails. NULL (default): nobody is told. */
    void *release_arg;
} qn_file_options;

static inline void qn_file_options_init(qn_file_options *options)
{
    qn_zero_(options, sizeof *options);
    options->size = sizeof *options;
    options->bytes = -1;
}
QN_API qn_status qn_file_options_init_sized(qn_file_options *options, size_t size);

/**
 * qn_file_open() with options: a part of a file, or pages that are read ahead or locked. Places in
 * sentences and entries count from the beginning of the part. options: NULL for the defaults.
 * @return as qn_file_open(), and QN_E_ARGUMENT: also a part that leaves the file; QN_E_MEMORY: also
 *         pages that cannot be locked; QN_E_VERSION: options uses a field from the future.
 */
QN_API qn_status qn_file_open_path(const qn_ctx *ctx, const char *path,
                                   const qn_file_options *options, qn_file **file, qn_error *err);
/** The same of a descriptor of a regular file that is open for reading; it stays the caller's and
 * may be closed at once. Its position is neither used nor moved. @return as qn_file_open_path(). */
QN_API qn_status qn_file_open_descriptor(const qn_ctx *ctx, int32_t descriptor,
                                         const qn_file_options *options, qn_file **file,
                                         qn_error *err);
/**
 * A file that lies in memory. Nothing is copied: data must stay as it is until the file, and all
 * packed weights that were loaded from it, are gone (options->release tells when). Checked as
 * everything that comes from a disk. Packed weights must lie at multiples of 64 bytes in memory:
 * those of files that quern wrote do if data does. data may be NULL if bytes is 0. Locks of the
 * system do not nest: the first file of several that lock a page gives it up for all.
 * @return as qn_file_open_path(), without QN_E_OPEN and QN_E_READ.
 */
QN_API qn_status qn_file_open_memory(const qn_ctx *ctx, const void *data, size_t bytes,
                                     const qn_file_options *options, qn_file **file,
                                     qn_error *err);
/** NULL is legal. Views of its data end here. */
QN_API void qn_file_close(qn_file *file);
QN_API qn_file_kind qn_file_get_kind(const qn_file *file);
/** The path that it was opened by; NULL for memory and descriptors. Belongs to the file. */
QN_API const char *qn_file_path(const qn_file *file);
/** Tensors, in the order of their data. */
QN_API int64_t qn_file_count(const qn_file *file);
/** @return QN_OK; QN_E_ARGUMENT: NULL or i out of range. */
QN_API qn_status qn_file_entry(const qn_file *file, int64_t i, qn_entry *entry);
/** @return QN_OK; QN_E_ARGUMENT; QN_E_NOT_FOUND. */
QN_API qn_status qn_file_find(const qn_file *file, const char *name, qn_entry *entry);
/** The i-th key and value of the file's metadata; QN_E_NOT_FOUND past the end. */
QN_API qn_status qn_file_metadata(const qn_file *file, int64_t i, const char **key,
                                  const char **value);
/** The value of a key, or NULL. */
QN_API const char *qn_file_get_metadata(const qn_file *file, const char *key);

/** An array in the metadata of a GGUF file: a vocabulary, its merges. Belongs to the file. */
typedef struct qn_array {
    size_t size;
    qn_dtype dtype;   /**< Of its numbers; QN_DTYPE_NONE: texts, for qn_array_next_text(). */
    int32_t reserved;
    int64_t count;    /**< Elements (of texts: that are left). */
    const void *data; /**< Of any alignment, little endian. */
    size_t bytes;
} qn_array;
static inline void qn_array_init(qn_array *array)
{
    qn_zero_(array, sizeof *array);
    array->size = sizeof *array;
}
QN_API qn_status qn_array_init_sized(qn_array *array, size_t size);
/** array: begun with qn_array_init(). Any thread.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_NOT_FOUND: no such key; QN_E_DTYPE: it is no array;
 *         QN_E_CORRUPT: the file was changed since it was opened. */
QN_API qn_status qn_file_array(const qn_file *file, const char *key, qn_array *array);
/** The next text of an array and its length; it is not terminated. The array moves on. NULL: there
 * is none, or the array is one of numbers. */
QN_API const char *qn_array_next_text(qn_array *array, size_t *bytes);
/** What a value in the metadata of a GGUF file is, as the format numbers it. */
typedef int32_t qn_value_type;
enum {
    QN_VALUE_U8 = 0,
    QN_VALUE_I8 = 1,
    QN_VALUE_U16 = 2,
    QN_VALUE_I16 = 3,
    QN_VALUE_U32 = 4,
    QN_VALUE_I32 = 5,
    QN_VALUE_F32 = 6,
    QN_VALUE_BOOL = 7,
    QN_VALUE_TEXT = 8,
    QN_VALUE_ARRAY = 9, /**< u32 type, u64 count, elements; texts are u64 bytes and the bytes. */
    QN_VALUE_U64 = 10,
    QN_VALUE_I64 = 11,
    QN_VALUE_F64 = 12
};
/** The bytes of a value in the metadata of a GGUF file, of any alignment; of a text without its
 * length. They belong to the file. Any thread.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_NOT_FOUND: no such key, or no GGUF file; QN_E_CORRUPT: the
 *         file was changed since it was opened. */
QN_API qn_status qn_file_value(const qn_file *file, const char *key, qn_value_type *type,
                               const void **bytes, size_t *count);
/** Copy a tensor's elements to out (contiguous, any alignment), converting float types if dtypes
 * differ.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE: no such conversion. */
QN_API qn_status qn_entry_copy(const qn_entry *entry, const qn_tensor *out);
/** Tell the kernel that the pages of a tensor are not needed any more. Of a file in memory nothing
 * happens. */
QN_API void qn_file_forget(const qn_file *file, const qn_entry *entry);
/** Ask the system to read the pages of a tensor ahead, while other work goes on. */
QN_API void qn_file_prefetch(const qn_file *file, const qn_entry *entry);

/** Quantized weights of a quern file, by index; their names. */
QN_API int64_t qn_file_weight_count(const qn_file *file);
QN_API const char *qn_file_weight_name(const qn_file *file, int64_t i);
/** Facts without loading: any of the outputs may be NULL. parts gets format and geometry, no
 * arrays. */
QN_API qn_status qn_file_weight_info(const qn_file *file, const char *name, qn_weight_parts *parts,
                                     size_t *bytes, qn_error *err);
/** @return QN_OK; QN_E_NOT_FOUND; QN_E_CORRUPT; QN_E_VALUE; QN_E_MEMORY; QN_E_VERSION. */
QN_API qn_status qn_file_load_weight(const qn_ctx *ctx, const qn_file *file, const char *name,
                                     qn_weight **weight, qn_error *err);

/**
 * Compare the data of a tensor with the checksum that the file has for it. Files with quantized or
 * packed weights that quern wrote have one of every tensor (docs/formats.md). Reads all of the
 * tensor. Any number of threads. has_checksum (may be NULL): 0 if the file has none; that is no
 * failure.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_NOT_FOUND: no such tensor; QN_E_CORRUPT: err has both
 *         checksums; QN_E_MEMORY.
 */
QN_API qn_status qn_file_verify(const qn_file *file, const char *name, int32_t *has_checksum,
                                qn_error *err);
/**
 * Compare the header - names, types, shapes and metadata, such as a weight's format - with the
 * checksum that the file has for it: files with quantized or packed weights that quern wrote have
 * one, earlier ones do not. Any number of threads. has_checksum
 * (may be NULL): as of qn_file_verify().
 * @return QN_OK; QN_E_ARGUMENT; QN_E_CORRUPT: err has both checksums.
 */
QN_API qn_status qn_file_verify_header(const qn_file *file, int32_t *has_checksum, qn_error *err);
/** verify 1: from now on qn_file_load_weight() and qn_packed_load() compare checksums first, of the
 * header too where it has one, and refuse weights that have none (QN_E_NOT_FOUND). Default 0. Not
 * while other threads use the file. NULL is legal. */
QN_API void qn_file_set_verify(qn_file *file, int32_t verify);

/* ---------------------------------------------------------------------------------- checkpoints */

/** A model's weights as somebody else's program wrote them: a file, its shards, or a folder with a
 * configuration. docs/checkpoints.md lists the formats. Any number of threads may use one. */
typedef struct qn_checkpoint qn_checkpoint;

/** What the zeros of GPTQ's format "gptq" (v1) stand for. */
typedef int32_t qn_gptq_zeros;
enum {
    QN_GPTQ_ZEROS_FOUND = 0,   /**< Found from the data and the configuration; what they leave
                                    open is refused. */
    QN_GPTQ_ZEROS_V1 = 1,      /**< zero = stored + 1, up to 2^bits. */
    QN_GPTQ_ZEROS_V1_WRAP = 2, /**< zero = (stored + 1) mod 2^bits. */
    QN_GPTQ_ZEROS_V2 = 3       /**< zero = stored. */
};

/** Decisions that a checkpoint leaves open. Set by _init(). */
typedef struct qn_checkpoint_options {
    size_t size;
    qn_gptq_zeros gptq_zeros;
    int32_t reserved; /**< 0. */
    int32_t prefetch; /**< Of all files, as in qn_file_options. */
    int32_t lock;     /**< Likewise. */
} qn_checkpoint_options;

static inline void qn_checkpoint_options_init(qn_checkpoint_options *options)
{
    qn_zero_(options, sizeof *options);
    options->size = sizeof *options;
}
QN_API qn_status qn_checkpoint_options_init_sized(qn_checkpoint_options *options, size_t size);

typedef int32_t qn_role;
enum {
    QN_ROLE_TENSOR = 0,    /**< A plain tensor: norms, biases, weights that are not quantized. */
    QN_ROLE_LINEAR = 1,    /**< A quantized matrix. */
    QN_ROLE_EMBEDDING = 2, /**< One whose name says that its rows are looked up. */
    QN_ROLE_EXPERTS = 3,   /**< Several matrices, one below the other. */
    QN_ROLE_CONV = 4
};

/** What the checkpoint says about the activations that meet a weight. */
typedef int32_t qn_activation;
enum {
    QN_ACTIVATION_NONE = 0,
    QN_ACTIVATION_INT8_ROW = 1,    /**< int8, one scale a row, found at run time. */
    QN_ACTIVATION_INT8_STATIC = 2, /**< int8, input_scale and input_zero. */
    QN_ACTIVATION_OTHER = 3        /**< Something else; the provenance says what. */
};

/** A module: a quantized weight, or a plain tensor. Texts belong to the checkpoint. */
typedef struct qn_module {
    size_t size;
    const char *name;     /**< Of the weight, as in a model that is not quantized:
                               "model.layers.0.mlp.up_proj.weight". */
    const char *importer; /**< What reads it: "gguf", "gptq", ...; "" for plain tensors. */
    const char *dtype;    /**< Of its main tensor, as the file spells it. */
    const char *bias;     /**< Name of the tensor that is its bias, or NULL. */
    qn_role role;
    qn_activation activation;
    qn_format format;     /**< Of weights: also of plain matrices of f32, f16 or bf16. */
    int64_t n, k;         /**< Of the same; n counts the rows of all experts. */
    int64_t experts;      /**< 1 unless the role says otherwise. */
    int32_t kh, kw, conv_groups;
    int32_t has_perm, has_prescale;
    float input_scale;    /**< QN_ACTIVATION_INT8_STATIC. */
    int32_t input_zero;
    int32_t n_tensors;    /**< That the module is kept in, without the bias. */
    size_t bytes;         /**< Of these. */
} qn_module;

static inline void qn_module_init(qn_module *module)
{
    qn_zero_(module, sizeof *module);
    module->size = sizeof *module;
}
QN_API qn_status qn_module_init_sized(qn_module *module, size_t size);

/** What loading came to. */
typedef struct qn_load_facts {
    size_t size;
    int64_t groups;  /**< Of the rows that were loaded. */
    int64_t rounded; /**< Groups whose scale or offset f32 does not hold exactly, which were rounded
                          once; 0: the weight is what the checkpoint says, exactly. */
} qn_load_facts;

static inline void qn_load_facts_init(qn_load_facts *facts)
{
    qn_zero_(facts, sizeof *facts);
    facts->size = sizeof *facts;
}
QN_API qn_status qn_load_facts_init_sized(qn_load_facts *facts, size_t size);

/**
 * Open a checkpoint: a file that qn_file_open() reads (of a GGUF file in several parts, any part;
 * of an ONNX model with its external data), a model.safetensors.index.json, or a folder with one
 * of them and the configuration that belongs to it (config.json, quantize_config.json,
 * quant_config.json, hf_quant_config.json). Files are mapped and headers checked; data are not
 * read. Names of files that an index or a graph gives must lie in its folder. options: NULL for the
 * defaults. Several threads may open checkpoints at once.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_OPEN; QN_E_READ; QN_E_CORRUPT: err has file and reason;
 *         QN_E_DTYPE; QN_E_NOT_FOUND: a folder without tensors, or a shard is missing; QN_E_MEMORY;
 *         QN_E_VERSION: options uses a field from the future.
 */
QN_API qn_status qn_checkpoint_open(const qn_ctx *ctx, const char *path,
                                    const qn_checkpoint_options *options,
                                    qn_checkpoint **checkpoint, qn_error *err);
/**
 * A checkpoint of files that are open already, from memory or from descriptors: all shards of a
 * model, or one file. They belong to the checkpoint from now on; after a failure they are closed.
 * config: the text of a config.json (config_bytes long, not terminated), or NULL. options: prefetch
 * and lock are not looked at.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_CORRUPT; QN_E_MEMORY; QN_E_VERSION.
 */
QN_API qn_status qn_checkpoint_open_files(const qn_ctx *ctx, qn_file *const *files,
                                          int32_t n_files, const char *config,
                                          size_t config_bytes,
                                          const qn_checkpoint_options *options,
                                          qn_checkpoint **checkpoint, qn_error *err);
/** NULL is legal. Texts and views end here; loaded weights do not. */
QN_API void qn_checkpoint_close(qn_checkpoint *checkpoint);
/** Its files, in the order of their names; NULL past the end. They belong to the checkpoint. */
QN_API const qn_file *qn_checkpoint_file(const qn_checkpoint *checkpoint, int64_t i);
/** What its configuration calls the way it was quantized: "gptq", "awq", ...; "" if nothing does.
 */
QN_API const char *qn_checkpoint_quantization(const qn_checkpoint *checkpoint);
/** Modules, in the order of their data. */
QN_API int64_t qn_checkpoint_count(const qn_checkpoint *checkpoint);
/** The index of a module; -1 if there is none of that name. */
QN_API int64_t qn_checkpoint_find(const qn_checkpoint *checkpoint, const char *name);
/**
 * Facts about module i; a few KiB of its data may be read. module is filled also where the module
 * cannot be imported, as far as it is understood: name, importer and dtype always.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_FORMAT: a variant that cannot be held exactly or is not known,
 *         or an ambiguity: err names it, and the option that decides it; QN_E_SHAPE, QN_E_DTYPE,
 *         QN_E_VALUE, QN_E_CORRUPT: its tensors or its configuration contradict each other;
 *         QN_E_NOT_FOUND: one of its tensors is missing.
 */
QN_API qn_status qn_checkpoint_module(const qn_checkpoint *checkpoint, int64_t i, qn_module *module,
                                      qn_error *err);
/** Where each fact about module i comes from, a line each, or why it was refused. Terminated when
 * capacity > 0; returns the length it needs without the end. */
QN_API size_t qn_checkpoint_provenance(const qn_checkpoint *checkpoint, int64_t i, char *text,
                                       size_t capacity);
/**
 * Tensor j of those that module i is kept in, the codes first. Also of a module that cannot be
 * imported, as far as it is understood. Any thread.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_NOT_FOUND: past the last one.
 */
QN_API qn_status qn_checkpoint_module_tensor(const qn_checkpoint *checkpoint, int64_t i, int32_t j,
                                             qn_entry *entry);
/**
 * Rows [first, first + n) of module i as a canonical weight; n -1: all from `first`. Takes the
 * memory of these rows. The same bits whatever the number of threads. A plain matrix of f32, f16 or
 * bf16 is a weight of the format of that name. facts: may be NULL.
 * @return as qn_checkpoint_module(), and QN_E_DTYPE: another plain tensor; QN_E_VALUE: a scale
 *         that is infinite or NaN, a code that is no number, zeros that contradict what was found;
 *         QN_E_MEMORY.
 */
QN_API qn_status qn_checkpoint_load(const qn_ctx *ctx, const qn_checkpoint *checkpoint, int64_t i,
                                    int64_t first, int64_t n, qn_weight **weight,
                                    qn_load_facts *facts, qn_error *err);
/** Columns [first_k, first_k + k) of rows [first_n, first_n + n). n, k -1: all that follow. */
typedef struct qn_rectangle {
    int64_t first_n, n, first_k, k;
} qn_rectangle;
/**
 * A rectangle of module i: as qn_checkpoint_load() and then qn_weight_slice() make it. Of the
 * files only its bytes are read, in whole pages, where its columns fall on whole words, blocks or
 * bytes of codes and on groups: GGUF, GPTQ without act-order, AWQ "gemm", compressed-tensors, int8,
 * fp8, and quern's own files without act-order. Of others all columns of these rows are read; of
 * scales in blocks of rows, and zeros that are packed along rows, all rows of these columns.
 * @return as qn_checkpoint_load(), and as qn_weight_slice().
 */
QN_API qn_status qn_checkpoint_load_part(const qn_ctx *ctx, const qn_checkpoint *checkpoint,
                                         int64_t i, const qn_rectangle *range, qn_weight **weight,
                                         qn_load_facts *facts, qn_error *err);
/** Rows [first, first + n) of a module; n -1: all from `first`. */
typedef struct qn_module_part {
    int64_t module;
    int64_t first, n;
} qn_module_part;

/**
 * Modules straight to packed weights: one, some of its rows, or several that are joined along n as
 * qn_weight_concat() joins them (q, k and v; gate and up; experts). The bytes are those of
 * qn_checkpoint_load(), qn_weight_concat() and qn_pack(), whatever the number of threads; but the
 * canonical weight is never in memory as a whole: beside the packed weights the call needs up to
 * 32 MiB (or 16 rows). Convolutions of groups, and packing for a GPU, need one module's canonical
 * weight. options: NULL for the defaults. facts: may be NULL.
 * @return as qn_checkpoint_load(), qn_weight_concat() and qn_pack(). An error in a module's data is
 *         that of its first rows that have one.
 */
QN_API qn_status qn_checkpoint_pack(const qn_ctx *ctx, const qn_checkpoint *checkpoint,
                                    int32_t count, const qn_module_part *parts,
                                    const qn_pack_options *options, qn_packed **packed,
                                    qn_load_facts *facts, qn_error *err);
/** A tensor of any of the files by its name there. @return QN_OK; QN_E_ARGUMENT; QN_E_NOT_FOUND. */
QN_API qn_status qn_checkpoint_tensor(const qn_checkpoint *checkpoint, const char *name,
                                      qn_entry *entry);
/** The pages of module i are not needed any more. */
QN_API void qn_checkpoint_forget(const qn_checkpoint *checkpoint, int64_t i);

/* -------------------------------------------------------------------------------------- writing */

typedef struct qn_writer qn_writer;

/**
 * Would a file be written at this path? For a caller that works for long before it begins to write:
 * nothing is made, and what other programs do meanwhile can still prevent it. Looks at the path,
 * its folder and its part file. Any thread.
 * @return QN_OK; QN_E_ARGUMENT: path is NULL or empty; QN_E_OPEN: a folder, a symbolic link that
 *         leads nowhere, no folder to write in, a part file that is refused; QN_E_EXISTS: path
 *         exists and overwrite is 0; QN_E_MEMORY.
 */
QN_API qn_status qn_output_check(const char *path, int32_t overwrite, qn_error *err);

/**
 * Begin to declare a safetensors file. Nothing is written yet.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_MEMORY.
 */
QN_API qn_status qn_writer_create(const qn_ctx *ctx, const char *path, qn_writer **writer,
                                  qn_error *err);
/**
 * Write a GGUF file instead (version 3, alignment 32; names of at most 63 bytes). Its tensors come
 * in the order of their declaration. Before anything is declared. Weights and packed weights are
 * for safetensors files only.
 * @return QN_OK; QN_E_ARGUMENT: NULL, too late, or another kind than safetensors and GGUF.
 */
QN_API qn_status qn_writer_set_kind(qn_writer *writer, qn_file_kind kind, qn_error *err);
/** Declare a tensor of a GGUF file in blocks: type as in "Q4_0", shape in elements, the last
 * dimension whole blocks. qn_writer_put() takes its bytes as a vector of u8.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_DTYPE: no such type; QN_E_SHAPE; QN_E_EXISTS; QN_E_MEMORY. */
QN_API qn_status qn_writer_add_blocks(qn_writer *writer, const char *name, const char *type,
                                      int32_t rank, const int64_t *shape, int64_t *index,
                                      qn_error *err);
/** A value for the metadata of a GGUF file, in the bytes of qn_file_value(), which are copied.
 * @return QN_OK; QN_E_ARGUMENT: also a size that the type does not have; QN_E_EXISTS: the key is
 *         taken; QN_E_MEMORY. */
QN_API qn_status qn_writer_value(qn_writer *writer, const char *key, qn_value_type type,
                                 const void *bytes, size_t count, qn_error *err);
/** Declare a tensor; index counts from 0. @return QN_OK; QN_E_ARGUMENT; QN_E_EXISTS: the name is
 * taken; QN_E_MEMORY. */
QN_API qn_status qn_writer_add(qn_writer *writer, const char *name, qn_dtype dtype, int32_t rank,
                               const int64_t *shape, int64_t *index, qn_error *err);
/** Declare a quantized weight (all of its tensors). from: format, n, k, geometry, and non-NULL
 * perm, prescale, table where the weight will have them. scale, zero and offset may be given too
 * ([n, n_groups]) and then decide what types they are kept in; NULL: the format's scale type (f32
 * with super-blocks) and i8 zero points, and qn_writer_put_weight() refuses values that these
 * cannot hold exactly (QN_E_VALUE). codes is not looked at.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_FORMAT; QN_E_SHAPE; QN_E_EXISTS: a name is taken;
 *         QN_E_MEMORY; QN_E_VERSION: from uses a field from the future. */
QN_API qn_status qn_writer_add_weight(qn_writer *writer, const char *name,
                                      const qn_weight_parts *from, int64_t *index, qn_error *err);
QN_API qn_status qn_writer_metadata(qn_writer *writer, const char *key, const char *value,
                                    qn_error *err);
/**
 * A fact that the content depends on and the declaration does not tell: the value of an option, the
 * digest of an input. Facts are kept in the part file, never in the file: qn_writer_begin() with
 * resume 1 continues a part file only if its facts are these. Both texts are copied; keys are
 * unique. Before qn_writer_begin(). One thread at a time.
 * @return QN_OK; QN_E_ARGUMENT: NULL, too late, or more than 16 MiB together; QN_E_EXISTS: the key
 *         is taken; QN_E_MEMORY.
 */
QN_API qn_status qn_writer_fingerprint(qn_writer *writer, const char *key, const char *value,
                                       qn_error *err);
/**
 * Write the header to "<path>.part", which is made exclusively, and which nobody but its owner may
 * write to until it is finished. resume 1: continue a part file left by an interrupted run whose
 * declaration is the same (else it begins anew); what was already written completely, and whose
 * checksum is right, is then done. A part file of another user, or that is no regular file, is
 * refused; one that others may write to, or that has a second name, is replaced and never believed.
 * overwrite 1: the finished file gets the mode, and where permitted the owner, of the one it
 * replaces.
 * @return QN_OK; QN_E_OPEN: also a path that is a folder, or a symbolic link that leads nowhere;
 *         QN_E_WRITE; QN_E_MEMORY; QN_E_EXISTS: path exists and overwrite is 0; QN_E_RESUME: the
 *         part file was made from other facts (qn_writer_fingerprint); err names the first that
 *         differs, and how much is done; the part file stays, and the writer may begin with
 *         resume 0.
 */
QN_API qn_status qn_writer_begin(qn_writer *writer, int32_t overwrite, int32_t resume,
                                 qn_error *err);
/**
 * What qn_writer_begin() found in a part file and does not continue with: *done of *all tensors and
 * weights that an earlier run had declared. 0 of 0: there was no part file; *all -1: there was one,
 * but it does not say what it holds. After qn_writer_begin().
 * @return QN_OK; QN_E_ARGUMENT: NULL or too early.
 */
QN_API qn_status qn_writer_discarded(const qn_writer *writer, int64_t *done, int64_t *all);
/** 1 if tensor or weight `index` needs no writing any more. */
QN_API int32_t qn_writer_is_done(const qn_writer *writer, int64_t index);
/** Write a whole tensor (contiguous, of the declared type and shape), or a whole weight. */
QN_API qn_status qn_writer_put(qn_writer *writer, int64_t index, const qn_tensor *tensor,
                               qn_error *err);
QN_API qn_status qn_writer_put_weight(qn_writer *writer, int64_t index, const qn_weight *weight,
                                      qn_error *err);
/** Declare packed weights as qn_packed_save() keeps them: size, layout and format are taken from
 * `packed`, which is not kept. One by one, so that a file can be larger than memory; and a run that
 * was interrupted can resume.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_EXISTS: the name is taken; QN_E_MEMORY. */
QN_API qn_status qn_writer_add_packed(qn_writer *writer, const char *name, const qn_packed *packed,
                                      int64_t *index, qn_error *err);
/** Write packed weights as large as those declared. ctx: of their device.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE: another size than declared; QN_E_WRITE; QN_E_DEVICE;
 *         QN_E_MEMORY. */
QN_API qn_status qn_writer_put_packed(qn_writer *writer, int64_t index, const qn_ctx *ctx,
                                      const qn_packed *packed, qn_error *err);
/** All done: flush, rename to path, free the writer. On failure the part file stays for a resume;
 * the writer is freed. */
QN_API qn_status qn_writer_finish(qn_writer *writer, qn_error *err);
/** Give up. keep_part 0 removes the part file. NULL is legal. */
QN_API void qn_writer_abort(qn_writer *writer, int32_t keep_part);

/** Write one tensor (any strides) as npy, atomically. @return QN_OK; QN_E_DTYPE; QN_E_OPEN;
 * QN_E_WRITE; QN_E_EXISTS. */
QN_API qn_status qn_npy_write(const char *path, const qn_tensor *tensor, int32_t overwrite,
                              qn_error *err);

/* ------------------------------------------------------------------------------------ exporting */

/** A canonical weight as the tensors of another program's format. */
typedef struct qn_export qn_export;

typedef struct qn_export_options {
    size_t size;
    const char *target;  /**< A name of qn_export_target(); "gguf:q4_1", "ct:int-quantized",
                              "onnx:qdq": only this kind of the format. */
    int32_t bits;        /**< Of a code; 0 (default): the least that hold it. GPTQ, ct. */
    qn_dtype scale_dtype;/**< QN_DTYPE_NONE (default): one of the format's that holds all scales. */
    int64_t group;       /**< Columns a group, which must divide the weight's own; -1: a row; 0
                              (default): the weight's own. */
    qn_activation activation; /**< What is to be said of the activations (ct). */
    float input_scale;   /**< QN_ACTIVATION_INT8_STATIC. */
    int32_t input_zero;
    int32_t reserved;    /**< 0. */
} qn_export_options;
static inline void qn_export_options_init(qn_export_options *options)
{
    qn_zero_(options, sizeof *options);
    options->size = sizeof *options;
}
QN_API qn_status qn_export_options_init_sized(qn_export_options *options, size_t size);

/** What an export came to. The text belongs to it. */
typedef struct qn_export_info {
    size_t size;
    const char *kind;     /**< "gemm", "gptq_v2", "pack-quantized", "nf4", "Q4_0", "MatMulNBits",
                               "QDQ", ... */
    int64_t group;        /**< Columns a group; -1: a row. */
    int32_t bits;
    int32_t is_symmetric; /**< 1: no zero points but the middle of the codes. */
    int32_t has_order;    /**< 1: its columns are in another order (act-order, g_idx). */
    int32_t reserved;
} qn_export_info;
static inline void qn_export_info_init(qn_export_info *info)
{
    qn_zero_(info, sizeof *info);
    info->size = sizeof *info;
}
QN_API qn_status qn_export_info_init_sized(qn_export_info *info, size_t size);

/** The i-th target of exports ("awq", "gptq", "gptq_v2", "gptq_p", "ct", "bnb", "gguf", "onnx");
 * NULL past the end. */
QN_API const char *qn_export_target(int32_t i);
/**
 * Write a weight in another program's format, exactly. Takes the memory of its tensors. The same
 * bytes whatever the number of threads. Neither weight nor options are kept.
 * @return QN_OK; QN_E_ARGUMENT: also no such target; QN_E_FORMAT, QN_E_SHAPE, QN_E_VALUE: the
 *         target cannot hold it; err names row, group and value, and the targets that could;
 *         QN_E_MEMORY; QN_E_VERSION: options uses a field from the future.
 */
QN_API qn_status qn_export_create(const qn_ctx *ctx, const qn_weight *weight,
                                  const qn_export_options *options, qn_export **made,
                                  qn_error *err);
/** NULL is legal. Its tensors end here. */
QN_API void qn_export_destroy(qn_export *made);
QN_API qn_status qn_export_query(const qn_export *made, qn_export_info *info);
QN_API int64_t qn_export_count(const qn_export *made);
/** Tensor i. Its name is what follows the module's: ".qweight". Blocks of GGUF have the dtype
 * QN_DTYPE_NONE, their type as text, and their shape in elements.
 * @return QN_OK; QN_E_ARGUMENT. */
QN_API qn_status qn_export_entry(const qn_export *made, int64_t i, qn_entry *entry);

/* ------------------------------------------------------------------------------- packed weights */

/**
 * Keep packed weights in a file, tagged with layout and instruction set; names are unique. Atomic.
 * Weights on a GPU are copied back piece by piece and need a context of their device.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_EXISTS; QN_E_OPEN; QN_E_WRITE; QN_E_MEMORY; QN_E_DEVICE.
 */
QN_API qn_status qn_packed_save(const qn_ctx *ctx, const char *path, int32_t count,
                                const char *const *names, const qn_packed *const *packed,
                                int32_t overwrite, qn_error *err);
/**
 * Use packed weights where they lie in an open file: no copy is made on the CPU; to a GPU they are
 * copied as they are. The file may be closed before the weights are destroyed. All offsets, sizes
 * and indices are checked, and that head and metadata agree; codes and scales are not looked at.
 * @return QN_OK; QN_E_NOT_FOUND: also a checksum that is to be compared (qn_file_set_verify);
 *         QN_E_CORRUPT; QN_E_VERSION; QN_E_LAYOUT: packed for another device or instruction set.
 */
QN_API qn_status qn_packed_load(const qn_ctx *ctx, const qn_file *file, const char *name,
                                qn_packed **packed, qn_error *err);
/**
 * Facts about packed weights of any device in a file, from the head that kernels read. layout is
 * "?" if this build of the library does not know it.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_NOT_FOUND; QN_E_CORRUPT: as qn_packed_load(); QN_E_VERSION;
 *         QN_E_MEMORY.
 */
QN_API qn_status qn_file_packed_info(const qn_file *file, const char *name, qn_packed_info *info,
                                     qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
