/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/verify.c: comparisons of this rank's module with that of rank 0. */
#include <stdio.h>
#include <unistd.h>

#include "ranks.h"

#define MESSAGE_WORDS 64                    /* of a message that all ranks report, in numbers of 8 bytes */

/* If ranks have found a difference (`first` is not negative), all ranks fail with the message of the lowest of them. */
static ctrt_status agree(struct ranks *r, int64_t first, const char *message)
{
    int64_t text[MESSAGE_WORDS] = { 0 };
    SCRATCH int64_t *all = NULL;
    int rank = 0;
    CTRT_TRY(ALLOCATE(all, (size_t)r->size));
    CTRT_TRY(gather_numbers(r, all, &first, 1));
    while (rank < r->size && all[rank] < 0)
        rank++;
    if (rank == r->size)
        return CTRT_OK;
    r->refused = rank;
    snprintf((char *)text, sizeof text, "rank %d: %s", r->rank, message);
    CTRT_TRY(exchange_numbers(r, EXCHANGE_BROADCAST, text, MESSAGE_WORDS, rank));
    ((char *)text)[sizeof text - 1] = '\0';
    return ctrt_fail(CTRT_ERR_STATE, "%s", (char *)text);
}

ctrt_status verify_ready(struct ranks *r, ctrt_status status)
{
    char message[400] = "";
    if (status != CTRT_OK)
        snprintf(message, sizeof message, "%s", ctrt_error_message());
    const ctrt_status others = agree(r, status == CTRT_OK ? -1 : 0, message);
    return status == CTRT_OK ? others : ctrt_fail(status, "%s", message);
}

/* ---- structure ---- */

/* Writes the options and a line for each parameter and buffer to *text, which the caller frees. */
static ctrt_status structure_text(const struct ranks *r, const char *options, char **text, size_t *bytes)
{
    FILE *file = open_memstream(text, bytes);
    CTRT_TRY(strategy_allocated(file, sizeof *file));
    fprintf(file, "CTRT_CANONICAL=%d\n%s", (int)r->canonical, options);
    fprintf(file, "%d SyncBatchNorm layers\n", (int)r->sync_layers);
    for (size_t i = 0; i < r->count; i++) {
        const bool parameter = i < r->parameters;
        fprintf(file, "%s \"%s\", %s [", parameter ? "parameter" : "buffer", ranks_name(r, i),
                ctrt_dtype_name(ctrt_tensor_dtype(r->tensors[i])));
        for (int k = 0; k < ctrt_tensor_ndim(r->tensors[i]); k++)
            fprintf(file, "%s%lld", k > 0 ? ", " : "", (long long)ctrt_tensor_size(r->tensors[i], k));
        fprintf(file, "]%s\n", parameter && !ctrt_tensor_requires_grad(r->tensors[i]) ? ", frozen" : "");
    }
    return strategy_allocated(fclose(file) == 0 ? *text : NULL, *bytes);
}

static int line_length(const char *line)
{
    const char *end = strchr(line, '\n');
    return (int)(end != NULL ? (size_t)(end - line) : strlen(line));
}

/* Returns the number of the first line that differs, or -1, and writes a message. */
static int64_t first_difference(char *message, size_t bytes, const char *mine, const char *theirs)
{
    for (int64_t line = 0; *mine != '\0' || *theirs != '\0'; line++) {
        const int a = line_length(mine), b = line_length(theirs);
        if (a != b || memcmp(mine, theirs, (size_t)a) != 0) {
            snprintf(message, bytes, "%.*s, but on rank 0 %.*s", a > 0 ? a : 17, a > 0 ? mine : "no more tensors",
                     b > 0 ? b : 17, b > 0 ? theirs : "no more tensors");
            return line;
        }
        mine += a + (mine[a] == '\n');
        theirs += b + (theirs[b] == '\n');
    }
    return -1;
}

ctrt_status verify_structure(struct ranks *r, const char *options)
{
    char message[400] = "";
    SCRATCH char *mine = NULL;
    SCRATCH int64_t *theirs = NULL;
    size_t bytes = 0;
    CTRT_TRY(structure_text(r, options, &mine, &bytes));
    int64_t length = (int64_t)bytes;
    CTRT_TRY(exchange_numbers(r, EXCHANGE_BROADCAST, &length, 1, 0));
    const size_t words = (size_t)length / 8 + 1;
    CTRT_TRY(ALLOCATE(theirs, words));
    if (r->rank == 0)
        memcpy(theirs, mine, bytes);
    CTRT_TRY(exchange_numbers(r, EXCHANGE_BROADCAST, theirs, words, 0));
    const int64_t first = first_difference(message, sizeof message, mine, (const char *)theirs);
    return agree(r, first, message);
}

/* ---- values ---- */

static ctrt_status same_bytes(bool *same, ctrt_tensor *a, ctrt_tensor *b)
{
    const ctrt_dtype dtype = ctrt_tensor_dtype(a);
    const size_t bytes = strategy_tensor_bytes(a);
    SCRATCH char *memory = NULL;
    CTRT_TRY(ALLOCATE(memory, 2 * bytes));
    CTRT_TRY(ctrt_to_host(memory, bytes, a, dtype));
    CTRT_TRY(ctrt_to_host(memory + bytes, bytes, b, dtype));
    *same = memcmp(memory, memory + bytes, bytes) == 0;
    return CTRT_OK;
}

/* Compares tensor after tensor with rank 0's. */
static ctrt_status find_difference(struct ranks *r, int64_t step)
{
    int64_t first = -1;
    char message[400] = "";
    const size_t count = r->broadcast_buffers ? r->count : r->parameters;
    for (size_t i = 0; i < count; i++) {
        CTRT_AUTO(tensor) copy = NULL;
        bool same = true;
        ctrt_no_grad CTRT_TRY(ctrt_clone(&copy, r->tensors[i]));
        CTRT_TRY(exchange(r, EXCHANGE_BROADCAST, &copy, 1, 0));
        CTRT_TRY(same_bytes(&same, r->tensors[i], copy));
        if (!same && first < 0)
            first = (int64_t)i;
    }
    if (first >= 0)
        snprintf(message, sizeof message, "CTRT_AUDIT at step %lld: \"%s\" differs from rank 0's", (long long)step,
                 ranks_name(r, (size_t)first));
    return agree(r, first, message);
}

ctrt_status verify_values(struct ranks *r, int64_t step)
{
    union { char text[72]; int64_t words[9]; } own = { .words = { 0 } };
    SCRATCH int64_t *all = NULL;
    bool same = true;
    CTRT_TRY(ctrt_module_sha256(own.text, r->module));
    CTRT_TRY(ALLOCATE(all, (size_t)r->size * 8));
    CTRT_TRY(gather_numbers(r, all, own.words, 8));
    for (int rank = 1; rank < r->size; rank++)
        same = same && memcmp(all, all + 8 * rank, 64) == 0;
    return same ? CTRT_OK : find_difference(r, step);
}

/* ---- devices ---- */

ctrt_status verify_devices(struct ranks *r)
{
    /* Process, device and hash of the host: equal for two threads of one process with one device, and very unlikely to
     * be equal for other ranks. */
    char host[64] = "";
    int64_t own[3] = { getpid(), (int64_t)(uintptr_t)r->device, 0 };
    (void)gethostname(host, sizeof host - 1);
    for (const char *at = host; *at != '\0'; at++)
        own[2] = (int64_t)((uint64_t)own[2] * 31 + (unsigned char)*at);
    SCRATCH int64_t *all = NULL;
    CTRT_TRY(ALLOCATE(all, (size_t)r->size * 3));
    CTRT_TRY(gather_numbers(r, all, own, 3));
    r->distinct = true;
    for (int i = 0; i < r->size; i++)
        for (int k = 0; k < i; k++)
            r->distinct = r->distinct && memcmp(&all[3 * i], &all[3 * k], sizeof own) != 0;
    return CTRT_OK;
}
