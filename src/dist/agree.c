/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks agree before they exchange: one that failed would leave the others waiting. */
#include "../base/error.h"
#include "../base/sized.h"
#include "product.h"

qn_status qni_parallel_check_prepared(const struct qn_parallel_args *args,
                                      const qn_matmul_args *matmul, qn_error *err)
{
    if (matmul->prepared == NULL || (args->split == QN_SPLIT_COLUMN && !args->gather_y))
        return QN_OK;
    return qni_fail(err, QN_E_UNSUPPORTED,
                    "prepared rows of x are for column products that gather nothing");
}

/* The ranks' numbers lie behind each other in one list, each twice: a maximum of ~a is that of the
 * least a. */
static void write_facts(const struct qni_facts *facts, int32_t *say)
{
    for (int32_t i = 0; i < facts->n; i++) {
        say[2 * i] = facts->of[i];
        say[2 * i + 1] = ~facts->of[i];
    }
}

static void read_facts(struct qni_facts *facts, const int32_t *say)
{
    facts->differs = -1;
    for (int32_t i = facts->n - 1; i >= 0; i--) {
        facts->most[i] = say[2 * i];
        facts->least[i] = ~say[2 * i + 1];
        if (i < facts->n_same && facts->most[i] != facts->least[i])
            facts->differs = i;
    }
}

qn_status qni_parallel_agree(const qn_comm *comm, qn_status status, struct qni_facts *facts,
                             const char *what, qn_error *err)
{
    struct qni_facts none = {.n = 0};
    int32_t say[1 + 2 * QNI_MOST_FACTS];
    if (facts == NULL)
        facts = &none;
    /* Of several failed ranks the first is named: ranks are counted from the last one back. */
    say[0] = status == QN_OK ? 0 : comm->n_ranks - comm->rank;
    write_facts(facts, say + 1);
    const size_t count = 1 + 2 * (size_t)facts->n;
    const qn_status told = comm->n_ranks == 1
                               ? QN_OK
                               : comm->all_reduce(comm->arg, say, count, QN_I32, QN_REDUCE_MAX,
                                                  qni_parallel_told(status, err));
    if (status != QN_OK || told != QN_OK)
        return status != QN_OK ? status : told;
    read_facts(facts, say + 1);
    if (say[0] == 0)
        return QN_OK;
    return qni_fail(err, QN_E_PEER, "%s: rank %d failed, and its own error says why", what,
                    comm->n_ranks - say[0]);
}

qn_status qni_parallel_open(const qn_ctx *ctx, const void *given, void *own, size_t own_bytes,
                            const qn_comm *const *from, qn_comm *comm, qn_error *err)
{
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL");
    QNI_TRY(qni_sized_read(own, own_bytes, given, err));
    return qni_parallel_check_comm(*from, comm, err);
}
