/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks agree before they exchange: one that failed would leave the others waiting. */
#include "../base/error.h"
#include "product.h"

qn_status qni_parallel_check_prepared(const struct qn_parallel_args *args,
                                      const qn_matmul_args *matmul, qn_error *err)
{
    if (matmul->prepared == NULL || (args->split == QN_SPLIT_COLUMN && !args->gather_y))
        return QN_OK;
    return qni_fail(err, QN_E_UNSUPPORTED,
                    "prepared rows of x are for column products that gather nothing");
}

qn_status qni_parallel_agree(const qn_comm *comm, qn_status status, const char *what,
                             qn_error *err)
{
    /* Of several failed ranks the first is named: ranks are counted from the last one back. */
    int32_t failed = status == QN_OK ? 0 : comm->n_ranks - comm->rank;
    if (comm->n_ranks == 1)
        return status;
    const qn_status told = comm->all_reduce(comm->arg, &failed, 1, QN_I32, QN_REDUCE_MAX,
                                            qni_parallel_told(status, err));
    if (status != QN_OK || told != QN_OK)
        return status != QN_OK ? status : told;
    if (failed == 0)
        return QN_OK;
    return qni_fail(err, QN_E_PEER, "%s: rank %d failed, and its own error says why", what,
                    comm->n_ranks - failed);
}
