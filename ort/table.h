/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of codes of 8 bits, by a table. */
#ifndef ORT_TABLE_H
#define ORT_TABLE_H

#include "program.h"

/* The code of y for each byte of x. */
struct ort_status *table_fill(const struct graph *graph, const struct claim *claim,
                              uint8_t *table);
struct ort_status *table_run(const struct program *program, struct ort_run *run,
                             struct worker *worker);

#endif
