/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/graph.h: graphs of recorded operations. */
#ifndef SOFTCUDA_GRAPH_H
#define SOFTCUDA_GRAPH_H

#include "driver.h"

struct graph *graph_new(void);                          /* the caller owns one reference */
void graph_release(struct graph *graph);
/* Adds an operation that depends on the nodes `before`, and takes ownership of it. Returns the node's number. -1: out
 * of memory; the caller still owns the operation. */
int graph_add(struct graph *graph, struct op *op, const int *before, int n_before);
/* Returns true if every node is one of `ends` or must run before one of them. */
bool graph_reaches_all(const struct graph *graph, const int *ends, int n);

#endif
