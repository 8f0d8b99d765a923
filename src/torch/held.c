/* SPDX-License-Identifier: Apache-2.0 */
#include "held.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST_PLANS = 32, MOST_SCRATCH = 16 };

struct kept_plan {
    held_key key;
    qn_plan *plan;
};

/* An entry of the table; `weights` comes first, for it is what operators get. */
struct entry {
    held weights;
    int64_t number;
    int32_t n_users; /* Under the lock, as all below. */
    int32_t n_plans;
    struct kept_plan plans[MOST_PLANS];
};

/* The table is a list of slots; a number's slot is number % SLOT_STEP. */
enum { SLOT_STEP = 1 << 20 };

static struct {
    atomic_flag lock, stream_lock;
    struct entry **slots;
    int64_t n_slots, room;
    int64_t made; /* How many numbers were given out. */
    held_scratch scratch[MOST_SCRATCH];
} table = {.lock = ATOMIC_FLAG_INIT, .stream_lock = ATOMIC_FLAG_INIT};

static void lock(atomic_flag *flag)
{
    while (atomic_flag_test_and_set_explicit(flag, memory_order_acquire))
        sched_yield();
}

static void unlock(atomic_flag *flag)
{
    atomic_flag_clear_explicit(flag, memory_order_release);
}

void held_stream_lock(void)
{
    lock(&table.stream_lock);
}

void held_stream_unlock(void)
{
    unlock(&table.stream_lock);
}

static struct entry *entry_of(int64_t number)
{
    const int64_t slot = number % SLOT_STEP;
    if (number < 0 || slot >= table.n_slots)
        return NULL;
    struct entry *found = table.slots[slot];
    return found != NULL && found->number == number ? found : NULL;
}

held *held_take(int64_t number)
{
    lock(&table.lock);
    struct entry *found = entry_of(number);
    if (found != NULL)
        found->n_users++;
    unlock(&table.lock);
    return found != NULL ? &found->weights : NULL;
}

void held_release(held *weights)
{
    lock(&table.lock);
    ((struct entry *)weights)->n_users--;
    unlock(&table.lock);
}

static const qn_plan *find_plan(const struct entry *entry, const held_key *key)
{
    for (int32_t i = 0; i < entry->n_plans; i++)
        if (memcmp(&entry->plans[i].key, key, sizeof *key) == 0)
            return entry->plans[i].plan;
    return NULL;
}

const qn_plan *held_plan(held *weights, const held_key *key)
{
    lock(&table.lock);
    const qn_plan *found = find_plan((struct entry *)weights, key);
    unlock(&table.lock);
    return found;
}

const qn_plan *held_keep(held *weights, const held_key *key, qn_plan *plan)
{
    struct entry *entry = (struct entry *)weights;
    lock(&table.lock);
    const qn_plan *found = find_plan(entry, key);
    const bool is_new = found == NULL && entry->n_plans < MOST_PLANS;
    if (is_new) {
        entry->plans[entry->n_plans].key = *key;
        entry->plans[entry->n_plans++].plan = plan;
        found = plan;
    }
    unlock(&table.lock);
    if (found != NULL && !is_new)
        qn_plan_destroy(plan);
    return found;
}

/* -------------------------------------------------------------------------------------- numbers */

/* A free slot, or -1: out of memory. Under the lock. */
static int64_t free_slot(void)
{
    for (int64_t i = 0; i < table.n_slots; i++)
        if (table.slots[i] == NULL)
            return i;
    if (table.n_slots == table.room) {
        const int64_t room = table.room < 64 ? 64 : 2 * table.room;
        if (room > SLOT_STEP)
            return -1;
        struct entry **slots = qn_memory_alloc(NULL, (size_t)room * sizeof *slots, 64);
        if (slots == NULL)
            return -1;
        memset(slots, 0, (size_t)room * sizeof *slots);
        if (table.slots != NULL) {
            memcpy(slots, table.slots, (size_t)table.n_slots * sizeof *slots);
            qn_memory_free(NULL, table.slots, (size_t)table.room * sizeof *slots);
        }
        table.slots = slots;
        table.room = room;
    }
    return table.n_slots++;
}

static size_t entry_bytes(int32_t count)
{
    return sizeof(struct entry) + (size_t)count * sizeof(qn_packed *);
}

/* Hold weights (several of one make for a grouped product) that the caller keeps until
 * qn_torch_drop(). @return their number; -1: out of memory, or no weights. */
QN_API int64_t qn_torch_hold(qn_ctx *ctx, const qn_packed *const *weights, int32_t count);
int64_t qn_torch_hold(qn_ctx *ctx, const qn_packed *const *weights, int32_t count)
{
    struct entry *made = count < 1 ? NULL : qn_memory_alloc(NULL, entry_bytes(count), 64);
    if (made == NULL)
        return -1;
    memset(made, 0, entry_bytes(count));
    made->weights.ctx = ctx;
    made->weights.count = count;
    made->weights.weights = (const qn_packed **)(void *)(made + 1);
    memcpy(made->weights.weights, weights, (size_t)count * sizeof *weights);
    qn_packed_info_init(&made->weights.info);
    bool is_right = qn_packed_query(weights[0], &made->weights.info) == QN_OK;
    lock(&table.lock);
    const int64_t slot = is_right ? free_slot() : -1;
    if (slot >= 0) {
        made->number = ++table.made * SLOT_STEP + slot;
        table.slots[slot] = made;
    }
    unlock(&table.lock);
    if (slot < 0) {
        qn_memory_free(NULL, made, entry_bytes(count));
        return -1;
    }
    return made->number;
}

/* Forget a number, when no call uses its weights any more. Unknown numbers are legal. */
QN_API void qn_torch_drop(int64_t number);
void qn_torch_drop(int64_t number)
{
    lock(&table.lock);
    struct entry *found = entry_of(number);
    if (found != NULL)
        table.slots[number % SLOT_STEP] = NULL;
    while (found != NULL && found->n_users > 0) {
        unlock(&table.lock);
        sched_yield();
        lock(&table.lock);
    }
    unlock(&table.lock);
    if (found == NULL)
        return;
    for (int32_t i = 0; i < found->n_plans; i++)
        qn_plan_destroy(found->plans[i].plan);
    qn_memory_free(NULL, found, entry_bytes(found->weights.count));
}

/* In a child of fork(): no other thread is there, whatever it was doing; calls of theirs that
 * use weights will not end. */
QN_API void qn_torch_after_fork(void);
void qn_torch_after_fork(void)
{
    for (int64_t i = 0; i < table.n_slots; i++)
        if (table.slots[i] != NULL)
            table.slots[i]->n_users = 0;
    unlock(&table.lock);
    unlock(&table.stream_lock);
}

/* -------------------------------------------------------------------------------------- scratch */

bool held_scratch_take(size_t bytes, held_scratch *scratch)
{
    *scratch = (held_scratch){NULL, 0};
    if (bytes == 0)
        return true;
    lock(&table.lock);
    for (int i = 0; i < MOST_SCRATCH; i++) {
        if (table.scratch[i].bytes < bytes)
            continue;
        *scratch = table.scratch[i];
        table.scratch[i] = (held_scratch){NULL, 0};
        break;
    }
    unlock(&table.lock);
    if (scratch->memory != NULL)
        return true;
    scratch->bytes = bytes + bytes / 4;
    scratch->memory = qn_memory_alloc(NULL, scratch->bytes, 64);
    return scratch->memory != NULL;
}

void held_scratch_give(held_scratch *scratch)
{
    held_scratch freed = *scratch;
    lock(&table.lock);
    /* Into the smallest place: what is larger stays, what is smaller goes. */
    int smallest = 0;
    for (int i = 1; i < MOST_SCRATCH; i++)
        if (table.scratch[i].bytes < table.scratch[smallest].bytes)
            smallest = i;
    if (freed.memory != NULL && table.scratch[smallest].bytes < freed.bytes) {
        const held_scratch smaller = table.scratch[smallest];
        table.scratch[smallest] = freed;
        freed = smaller;
    }
    unlock(&table.lock);
    qn_memory_free(NULL, freed.memory, freed.bytes);
}
