/* SPDX-License-Identifier: Apache-2.0 */
/* One model over the processes of mpirun. Each has whole heads of the attention and some columns of
 * the feed-forward network: what makes them is cut by outputs, what reads them by columns, so that
 * a layer exchanges twice, after the attention and after the network. */
#ifndef LLM_RANKS_H
#define LLM_RANKS_H

#include <stdbool.h>

#include <quern/quern.h>

/* Joins the processes; all but the first then print nothing to stdout. false: the reason was
 * printed. */
bool ranks_open(qn_comm *comm);
/* Did all do well? false, too, if one is lost. */
bool ranks_agree(const qn_comm *comm, bool is_good);
/* has_failed: ends all processes, for the others would wait for this one. */
void ranks_close(bool has_failed);

#endif
