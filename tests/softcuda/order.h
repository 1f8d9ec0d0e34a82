/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/order.h: does what uses the same memory on different streams come in an order that the program made? SOFTCUDA=streams=error|tell.
 *
 * All functions do nothing when that is off. */
#ifndef SOFTCUDA_ORDER_H
#define SOFTCUDA_ORDER_H

#include "driver.h"

bool order_open(void);
void order_stream(struct stream *stream);                           /* a new one */
void order_stream_over(struct stream *stream);
void order_put(struct op *op);                                      /* the host puts it on a queue */
void order_begin(struct stream *stream, struct op *op);             /* its turn has come */
void order_end(struct stream *stream);                              /* under the stream's lock */
void order_mark(struct mark *mark, const struct stream *stream);    /* is about to be reached */
void order_stream_waited(struct stream *stream, const struct mark *mark);
void order_host_waited(const struct mark *mark);
void order_host_idle(const struct stream *stream);                  /* found the stream idle; under its lock */
void order_host_called(const struct stream *stream);                /* a function of the host runs in stream order */
void order_name(const char *name);                                  /* what the stream's thread does now, for messages */
/* The stream's thread reads or writes that memory now. */
void order_touch(address begin, size_t bytes, bool write);
void order_forget(address begin, size_t bytes);                     /* new memory */

#endif
