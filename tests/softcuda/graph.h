/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/graph.h: recorded operations. */
#ifndef SOFTCUDA_GRAPH_H
#define SOFTCUDA_GRAPH_H

#include "driver.h"

struct graph *graph_new(void);                          /* holds one reference */
void graph_release(struct graph *graph);
/* Takes the operation over; -1: no memory. Gives the node's number. */
int graph_add(struct graph *graph, struct op *op, const int *before, int n_before);
/* Does every node come before one of these, or is it one? */
bool graph_reaches_all(const struct graph *graph, const int *ends, int n);

#endif
