/* SPDX-License-Identifier: Apache-2.0 */
/* The context's scratch, for calls that bring none. */
#ifndef QNI_API_ARENA_H
#define QNI_API_ARENA_H

#include "../base/context.h"

/* The arena, held until qni_arena_give(); waits while another call holds it. NULL (nothing
 * held): it has fewer bytes. */
void *qni_arena_take(const qn_ctx *ctx, size_t bytes);
void qni_arena_give(const qn_ctx *ctx);

#endif
