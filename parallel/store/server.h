/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/server.h: the server of a tcp store, a thread of the process that serves. */
#ifndef PARALLEL_STORE_SERVER_H
#define PARALLEL_STORE_SERVER_H

#include "ctrt/types.h"

struct store_server;

/* Starts the server on `host`, `port` (0: chosen by the system). `secret` NULL: none; it must stay valid. */
ctrt_status store_server_start(struct store_server **out, const char *host, int port, const char *secret);
int store_server_port(const struct store_server *server);
/* Closes all connections, ends the thread and frees the server. */
void store_server_stop(struct store_server *server);

/* Around a fork: the thread does not change the list of connections in between. store_server_forked runs in the child
 * and closes its copies of all descriptors. */
void store_server_before_fork(struct store_server *server);
void store_server_after_fork(struct store_server *server);
void store_server_forked(struct store_server *server);

/* Sets what TCP does if the other machine does not answer any more: the connection breaks after about 30 s. Sends small
 * messages at once. */
void store_socket_options(int fd);

#endif
