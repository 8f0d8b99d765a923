/* SPDX-License-Identifier: Apache-2.0 */
/* MaxPool of images of f32, int8 or uint8, with channels first or last. */
#ifndef ORT_POOL_H
#define ORT_POOL_H

#include "program.h"

struct ort_status *pool_run(const struct program *program, struct ort_run *run,
                            struct worker *worker);

#endif
