/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/order.h: checks that the program orders uses of the same memory on different streams.
 * SOFTCUDA=streams=error|report.
 *
 * If the option is off, all functions do nothing. */
#ifndef SOFTCUDA_ORDER_H
#define SOFTCUDA_ORDER_H

#include "driver.h"

bool order_open(void);
void order_stream(struct stream *stream);                           /* call for each new stream */
void order_stream_over(struct stream *stream);
void order_put(struct op *op);                                      /* the host enqueues the operation */
void order_begin(struct stream *stream, struct op *op);             /* the stream starts the operation */
void order_end(struct stream *stream);                              /* with the stream's lock held */
void order_mark(struct mark *mark, const struct stream *stream);    /* call just before mark_reach */
void order_stream_waited(struct stream *stream, const struct mark *mark);
void order_host_waited(const struct mark *mark);
void order_host_idle(const struct stream *stream);                  /* the stream is idle; its lock is held */
void order_host_called(const struct stream *stream);                /* a host function runs in stream order */
void order_name(const char *name);                                  /* the stream's operation, for messages */
/* Checks and records that the calling stream's thread reads or writes the memory. */
void order_touch(address begin, size_t bytes, bool write);
void order_forget(address begin, size_t bytes);                     /* call for new memory */

#endif
