/* SPDX-License-Identifier: Apache-2.0 */
/* A weight's description: the JSON text under the metadata key quern.weight.<name>,
 *     {"version":1,"format":"int4:g128","n":4096,"k":4096,"kh":1,"kw":1,"conv_groups":1}
 * (version 2 where the format has minima or super-blocks) with the format in the small language for
 * weights (quern/weights.h). */
#ifndef QNI_CHECKPOINT_DESCRIBE_H
#define QNI_CHECKPOINT_DESCRIBE_H

#include <quern/weights.h>

#include "../base/alloc.h"

enum { QNI_DESCRIPTION_VERSION = 2, QNI_DESCRIPTION_BYTES = 320 };

/* Describes a weight by format, n, k and geometry, which the caller has checked. The text is
 * terminated and always fits. */
void qni_describe(const qn_weight_parts *parts, char text[QNI_DESCRIPTION_BYTES]);

/*
 * Read one. The format is possible and the numbers are not negative; nothing else is checked.
 * @return QN_OK; QN_E_CORRUPT; QN_E_VERSION: written by a later version; QN_E_MEMORY.
 */
qn_status qni_describe_parse(const struct qni_allocator *a, const char *text,
                             qn_weight_parts *parts, qn_error *err);

/* Do format, n, k, taps and groups agree? Gives the groups along k.
 * @return QN_OK; QN_E_FORMAT; QN_E_SHAPE. */
qn_status qni_describe_check(const qn_weight_parts *parts, int64_t *n_groups, qn_error *err);

#endif
