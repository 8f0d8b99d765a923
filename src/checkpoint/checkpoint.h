/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an open checkpoint: its files, one table of all their tensors by name, what the
 * configuration beside them says, and the list of modules.
 *
 * Opening reads headers only, so that a folder of any size opens at once. What a module is made of
 * is asked of its importer when somebody wants to know (qni_found), and its data are read when it
 * is loaded. A checkpoint does not change after it was opened: any number of threads may use it. */
#ifndef QNI_CHECKPOINT_CHECKPOINT_H
#define QNI_CHECKPOINT_CHECKPOINT_H

#include <quern/checkpoint.h>

#include "file.h"
#include "import/import.h"
#include "settings.h"

struct qni_ref { /* a tensor */
    uint32_t file, entry;
};

struct qni_module {
    char *name;       /* of the weight */
    size_t bytes;     /* of the name, as allocated */
    uint32_t head;    /* of refs */
    int32_t importer; /* -1: a plain tensor */
    const struct qni_link *link; /* of graphs, or NULL */
};

struct qn_checkpoint {
    struct qni_allocator allocator;
    qn_checkpoint_options options;
    qn_file **files;
    size_t n_files, file_capacity;
    struct qni_ref *refs; /* in the order of files and of their data */
    uint32_t *by_name;    /* [n_refs] */
    size_t n_refs;
    const struct qni_link **links; /* [n_refs]: the use of the tensor in a graph; NULL: no graph */
    struct qni_module *modules;
    size_t n_modules, module_capacity;
    uint32_t *modules_by_name;
    struct qni_settings config;
    int32_t quantization; /* node of the configuration of quantized weights, or -1 */
    const char *origin;   /* where it stands: "config.json, quantization_config" */
    const char *method;   /* quant_method or what the file's name says; "" */
};

/* Open the files of a path into a checkpoint, and the configuration; no tables yet. @return as
 * qn_checkpoint_open(). */
qn_status qni_checkpoint_gather(const qn_ctx *ctx, const char *path, qn_checkpoint *c,
                                qn_error *err);
/* Take over a file. Frees it if there is no memory. */
qn_status qni_checkpoint_add(qn_checkpoint *c, qn_file *file, qn_error *err);
/* The configuration's text. name: of its file, a static text. */
qn_status qni_checkpoint_configure(qn_checkpoint *c, const char *name, const char *text,
                                   size_t size, qn_error *err);
/* Is there a module i? c may be NULL. */
bool qni_checkpoint_has(const qn_checkpoint *c, int64_t i);
/* NULL: a plain tensor. */
const struct qni_importer *qni_checkpoint_importer(const struct qni_module *m);
/* What the importer finds; of a plain tensor its part alone. @return as qn_checkpoint_module(). */
qn_status qni_checkpoint_find_module(const qn_checkpoint *c, const struct qni_module *m,
                                     struct qni_found *found, qn_error *err);
/* Tables of tensors and modules, from the files. */
qn_status qni_checkpoint_index(qn_checkpoint *c, qn_error *err);

#endif
