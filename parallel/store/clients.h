/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/clients.h: the state of a tcp store's server, and what it does with the requests of its clients. Used
 * by store/server.c and store/clients.c only, with the lock of the server held. */
#ifndef PARALLEL_STORE_CLIENTS_H
#define PARALLEL_STORE_CLIENTS_H

#include <poll.h>
#include <pthread.h>

#include "parallel/store/auth.h"
#include "parallel/store/map.h"

#define MOST_REPLIES 64
#define MOST_WAITS   65536
#define CLIENT_WAITS 1024
#define WAIT_LISTS   1024
#define DISCONNECT_KEYS 512

/* Bytes to send: `head`, then the value. */
struct reply {
    struct reply *next;
    size_t head_bytes, sent;
    struct store_value *value;
    union {
        struct store_header header;
        struct store_hello hello;
        struct store_verdict verdict;
    } head;
};

/* A STORE_GET that waits for its key. In the list of a hash and in the list of a client. `place`: the address of the
 * pointer to it. */
struct wait {
    struct wait *next, **place, *next_of_client, **place_of_client;
    struct client *client;
    uint32_t id;
    size_t key_bytes;
    char key[];
};

/* A value of STORE_AT_DISCONNECT. */
struct disconnect_value {
    struct disconnect_value *next;
    struct store_value *value;
    size_t key_bytes;
    char key[];
};

struct client {
    int fd;
    bool accepted;                      /* has authenticated */
    bool closing;                       /* gets no more requests; ends when the replies are sent */
    bool dead;                          /* freed at the end of the round */
    int64_t since;                      /* when it connected, or when bytes of it arrived */
    struct store_hello hello;
    unsigned char *input;
    size_t used, capacity;
    struct reply *replies, **last_reply;
    size_t reply_count, wait_count, disconnect_count;
    struct wait *waits;
    struct disconnect_value *disconnect_values;
};

struct store_server {
    pthread_t thread;
    pthread_mutex_t lock;               /* the thread holds it except in poll() */
    int listener, wake;
    bool stop;
    bool exhausted;                     /* accept() failed for lack of resources; pause */
    const char *secret;
    struct store_map map;
    struct client **clients;
    size_t client_count, client_capacity;
    struct pollfd *polls;               /* [0] wake, [1] listener, [2 + i] clients[i] */
    size_t poll_capacity;
    size_t pending;                     /* clients that have not authenticated yet */
    size_t input_bytes;                 /* of all input buffers larger than SMALL_INPUT */
    size_t wait_count;
    struct wait *waits[WAIT_LISTS];
};

/* Sends what the client's socket takes. */
void client_send(struct client *client);
/* Sends head[bytes] and a new reference to the value, which may be NULL, when the socket takes them. */
void client_send_bytes(struct client *client, const void *head, size_t bytes, struct store_value *value);
/* Executes a request and replies. */
void client_request(struct store_server *server, struct client *client, const struct store_message *message);
/* The client's connection has ended: ends its waits and sets the keys of STORE_AT_DISCONNECT, which may make other
 * clients dead. */
void client_disconnect(struct store_server *server, struct client *client);
/* Frees the client's replies, waits and values of STORE_AT_DISCONNECT. */
void client_clear(struct store_server *server, struct client *client);

#endif
