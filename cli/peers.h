/* SPDX-License-Identifier: Apache-2.0 */
/* Other libraries beside ours: programs in a folder that speak the lines of bench/peer.h. They are
 * timed in turn with us, on the same x, weights and threads, and their y meets the same sums in
 * double as ours does. */
#ifndef CLI_PEERS_H
#define CLI_PEERS_H

#include "problem.h"

enum { MAX_CONTESTS = 32 };

/* One way of one peer to compute the problem of the moment. */
struct contest {
    const char *peer, *version; /* of the peer, for as long as it runs */
    char way[64];
    struct samples samples;
    struct timing time;
    double error; /* as verdict.error; below 0: there is no y */
    int is_good;  /* y is the product, to what 8 bits can do */
    char why[160];
    int peer_index, way_index;
};

struct peers;
/* Start the programs of the folder (NULL: "peers" beside the command), all or only "a,b". Those
 * that have nothing to offer say why on standard error. 0 or the exit status. */
int peers_start(const char *folder, const char *only, struct peers **peers);
void peers_stop(struct peers *peers);
/* Give them a problem, and the weights' copies as many bytes as ours. contests: those that take
 * it; returns how many. */
int peers_make(struct peers *peers, const struct workload *w, size_t rotate_bytes,
               struct contest contests[MAX_CONTESTS]);
/* Time one for so long; samples are added. One that fails is good no more. */
void peers_run(struct peers *peers, struct contest *contest, double seconds);
/* Compare y of its last run. */
void peers_check(struct peers *peers, const struct workload *w, struct contest *contest);
/* The end of the problem. */
void peers_drop(struct peers *peers, struct contest *contests, int n);

#endif
