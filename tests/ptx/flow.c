/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/flow.c: finds for each branch where its two paths meet again: the first instruction of its immediate
 * post-dominator (Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed flow graph). */
#include "machine.h"

#include <stdlib.h>

struct node {
    uint32_t begin, end;                    /* instructions [begin, end) */
    uint32_t next[2];                       /* successors; NO_INSN: none */
    uint32_t order;                         /* in reverse postorder of the reversed graph; NO_INSN: unreachable */
    uint32_t dominator;                     /* immediate post-dominator */
};

static uint32_t intersect(const struct node *nodes, uint32_t a, uint32_t b)
{
    while (a != b) {
        while (nodes[a].order > nodes[b].order)
            a = nodes[a].dominator;
        while (nodes[b].order > nodes[a].order)
            b = nodes[b].dominator;
    }
    return a;
}

void ptx_find_joins(struct function *f)
{
    struct insn *code = f->code;
    const uint32_t n = f->length;
    uint32_t *owner = malloc(((size_t)n + 1) * sizeof *owner), count = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (code[k].kind == BRANCH)
            code[code[k].target].leader = 1;
        if ((code[k].kind == BRANCH || code[k].kind == RETURN || code[k].kind == EXIT) && k + 1 < n)
            code[k + 1].leader = 1;
    }
    if (n > 0)
        code[0].leader = 1;
    for (uint32_t k = 0; k < n; k++) {
        count += code[k].leader;
        owner[k] = count - 1;
    }
    /* Node `count` is the exit. */
    struct node *nodes = calloc(count + 1, sizeof *nodes);
    const uint32_t exit = count;
    for (uint32_t k = 0, b = 0; b < count; b++) {
        nodes[b].begin = k++;
        while (k < n && !code[k].leader)
            k++;
        nodes[b].end = k;
        const struct insn *last = &code[k - 1];
        uint32_t *next = nodes[b].next;
        next[0] = next[1] = NO_INSN;
        if (last->kind == BRANCH)
            next[0] = owner[last->target];
        if (last->kind == RETURN || last->kind == EXIT)
            next[0] = exit;
        if ((last->kind != BRANCH && last->kind != RETURN && last->kind != EXIT) || last->guarded)
            next[1] = k < n ? owner[k] : exit;
    }
    nodes[exit].begin = nodes[exit].end = NO_INSN;
    nodes[exit].next[0] = nodes[exit].next[1] = NO_INSN;
    /* Predecessor lists, as edges of the reversed graph. */
    uint32_t *first = calloc(count + 2, sizeof *first), *edges = malloc((2 * (size_t)count + 1) * sizeof *edges);
    for (uint32_t b = 0; b < count; b++)
        for (unsigned k = 0; k < 2; k++)
            if (nodes[b].next[k] != NO_INSN)
                first[nodes[b].next[k] + 1]++;
    for (uint32_t b = 0; b <= count; b++)
        first[b + 1] += first[b];
    uint32_t *at = malloc((count + 1) * sizeof *at);
    memcpy(at, first, (count + 1) * sizeof *at);
    for (uint32_t b = 0; b < count; b++)
        for (unsigned k = 0; k < 2; k++)
            if (nodes[b].next[k] != NO_INSN)
                edges[at[nodes[b].next[k]]++] = b;
    /* Postorder of the reversed graph from the exit. */
    uint32_t *stack = malloc((count + 1) * sizeof *stack), *list = malloc((count + 1) * sizeof *list);
    unsigned char *seen = calloc(count + 1, 1);
    uint32_t depth = 0, listed = 0;
    memcpy(at, first, (count + 1) * sizeof *at);
    stack[depth++] = exit;
    seen[exit] = 1;
    while (depth > 0) {
        const uint32_t b = stack[depth - 1];
        if (at[b] < first[b + 1]) {
            const uint32_t p = edges[at[b]++];
            if (!seen[p]) {
                seen[p] = 1;
                stack[depth++] = p;
            }
        } else {
            list[listed++] = b;
            depth--;
        }
    }
    for (uint32_t b = 0; b <= count; b++)
        nodes[b].order = nodes[b].dominator = NO_INSN;
    for (uint32_t k = 0; k < listed; k++)
        nodes[list[k]].order = listed - 1 - k;
    nodes[exit].dominator = exit;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t k = listed - 1; k-- > 0;) {
            const uint32_t b = list[k];
            uint32_t dominator = NO_INSN;
            for (unsigned e = 0; e < 2; e++) {
                const uint32_t s = nodes[b].next[e];
                if (s != NO_INSN && nodes[s].dominator != NO_INSN)
                    dominator = dominator == NO_INSN ? s : intersect(nodes, dominator, s);
            }
            if (dominator != nodes[b].dominator) {
                nodes[b].dominator = dominator;
                changed = true;
            }
        }
    }
    /* A branch of an endless loop has no post-dominator, and its lanes do not meet. */
    for (uint32_t b = 0; b < count; b++) {
        const uint32_t d = nodes[b].dominator;
        code[nodes[b].end - 1].join = d == NO_INSN ? NO_INSN : nodes[d].begin;
    }
    free(owner), free(nodes), free(first), free(edges), free(at), free(stack), free(list), free(seen);
}
