/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/node.c: destruction of nodes. */
#include "autograd/hooks.h"
#include "autograd/node.h"

static void node_clear(struct grad_node *node)
{
    for (uint32_t i = 0; i < node->n_in; i++)
        edge_release(&node->edges[i]);
    struct node_extras *extras = atomic_load_explicit(&node->extras, memory_order_relaxed);
    if (unlikely(extras != NULL))
        node_extras_free(extras);
    if (unlikely(node->stream != NULL))
        ctrt_stream_release(&node->stream);
    node->class->destroy(node);
}

/* Frees a node without references. That releases other nodes, through its edges and through saved tensors. Nodes whose
 * last reference is released are put in a list. The outermost call frees all nodes of the list, so a chain of any
 * length needs constant stack. */
void node_die(struct grad_node *node)
{
    struct autograd_thread *here = autograd_here();
    node->next = here->dying;
    here->dying = node;
    if (here->draining)
        return;
    here->draining = true;
    int64_t freed = 0;
    while ((node = here->dying) != NULL) {
        here->dying = node->next;
        node_clear(node);
        freed++;
    }
    here->draining = false;
    autograd_count(here, -freed, 0);
}
