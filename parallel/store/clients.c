/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/clients.c: the server's replies, the waits for keys, and the execution of requests. */
#include "parallel/store/clients.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/base.h"
#include "base/host_alloc.h"

/* ---- output ---- */

static void reply_free(struct client *client, struct reply *reply)
{
    client->replies = reply->next;
    if (client->replies == NULL)
        client->last_reply = &client->replies;
    client->reply_count--;
    store_value_release(reply->value);
    host_free(reply);
}

void client_send(struct client *client)
{
    while (client->replies != NULL && !client->dead) {
        struct reply *reply = client->replies;
        const bool in_head = reply->sent < reply->head_bytes;
        const size_t offset = in_head ? reply->sent : reply->sent - reply->head_bytes;
        const char *from = in_head ? (const char *)&reply->head : (const char *)reply->value->data;
        const size_t bytes = in_head ? reply->head_bytes : reply->value->bytes;
        const bool more = in_head && reply->value != NULL && reply->value->bytes > 0;
        const ssize_t n = send(client->fd, from + offset, bytes - offset, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (n < 0) {
            if (errno == EINTR)
                continue;
            client->dead = errno != EAGAIN;
            return;
        }
        reply->sent += (size_t)n;
        if (reply->sent == reply->head_bytes + (reply->value != NULL ? reply->value->bytes : 0))
            reply_free(client, reply);
    }
    client->dead |= client->closing && client->replies == NULL;
}

void client_send_bytes(struct client *client, const void *head, size_t bytes, struct store_value *value)
{
    struct reply *reply = client->dead ? NULL : host_calloc(sizeof *reply);
    if (reply == NULL) {
        client->dead = true;
        return;
    }
    memcpy(&reply->head, head, bytes);
    reply->head_bytes = bytes;
    reply->value = value != NULL ? store_value_retain(value) : NULL;
    *client->last_reply = reply;
    client->last_reply = &reply->next;
    if (client->reply_count++ == 0)
        client_send(client);
}

static void send_reply(struct client *client, uint32_t id, enum store_result result, struct store_value *value)
{
    const struct store_header header = {
        .id = id, .op = STORE_REPLY, .flags = (uint8_t)result,
        .value_bytes = value != NULL ? (uint32_t)value->bytes : 0,
    };
    client_send_bytes(client, &header, sizeof header, value);
}

/* ---- waits ---- */

static struct wait **wait_list(struct store_server *server, const char *key, size_t key_bytes)
{
    return &server->waits[store_map_hash(&server->map, key, key_bytes) % WAIT_LISTS];
}

static void wait_remove(struct store_server *server, struct wait *wait)
{
    *wait->place = wait->next;
    if (wait->next != NULL)
        wait->next->place = wait->place;
    *wait->place_of_client = wait->next_of_client;
    if (wait->next_of_client != NULL)
        wait->next_of_client->place_of_client = wait->place_of_client;
    wait->client->wait_count--;
    server->wait_count--;
    host_free(wait);
}

static void wait_add(struct store_server *server, struct client *client, const struct store_message *message)
{
    const bool full = server->wait_count >= MOST_WAITS || client->wait_count >= CLIENT_WAITS;
    struct wait *wait = full ? NULL : host_alloc(sizeof *wait + message->key_bytes);
    if (wait == NULL) {
        send_reply(client, message->id, full ? STORE_FULL : STORE_NO_MEMORY, NULL);
        return;
    }
    struct wait **list = wait_list(server, message->key, message->key_bytes);
    *wait = (struct wait) { .next = *list, .place = list, .next_of_client = client->waits,
                            .place_of_client = &client->waits, .client = client, .id = message->id,
                            .key_bytes = message->key_bytes };
    memcpy(wait->key, message->key, message->key_bytes);
    if (*list != NULL)
        (*list)->place = &wait->next;
    *list = wait;
    if (client->waits != NULL)
        client->waits->place_of_client = &wait->next_of_client;
    client->waits = wait;
    client->wait_count++;
    server->wait_count++;
}

static void wait_cancel(struct store_server *server, struct client *client, uint32_t id)
{
    for (struct wait *wait = client->waits; wait != NULL; wait = wait->next_of_client)
        if (wait->id == id) {
            send_reply(client, id, STORE_UNSET, NULL);
            wait_remove(server, wait);
            return;
        }
}

static void answer_waits(struct store_server *server, const char *key, size_t key_bytes, struct store_value *value)
{
    for (struct wait *wait = *wait_list(server, key, key_bytes), *next; wait != NULL; wait = next) {
        next = wait->next;
        if (wait->key_bytes != key_bytes || memcmp(wait->key, key, key_bytes) != 0)
            continue;
        send_reply(wait->client, wait->id, STORE_OK, value);
        wait_remove(server, wait);
    }
}

/* ---- requests ---- */

/* Removes the entry to which *place points. */
static void disconnect_value_drop(struct client *client, struct disconnect_value **place)
{
    struct disconnect_value *entry = *place;
    *place = entry->next;
    client->disconnect_count--;
    store_value_release(entry->value);
    host_free(entry);
}

static void disconnect_values_free(struct client *client)
{
    while (client->disconnect_values != NULL)
        disconnect_value_drop(client, &client->disconnect_values);
}

/* Returns the place of the pointer to the key's entry, or of the NULL at the end of the list. */
static struct disconnect_value **disconnect_value_find(struct client *client, const struct store_message *message)
{
    struct disconnect_value **place = &client->disconnect_values;
    while (*place != NULL && ((*place)->key_bytes != message->key_bytes
                              || memcmp((*place)->key, message->key, message->key_bytes) != 0))
        place = &(*place)->next;
    return place;
}

static enum store_result disconnect_value_remove(struct client *client, const struct store_message *message)
{
    struct disconnect_value **place = disconnect_value_find(client, message);
    if (*place == NULL)
        return STORE_UNSET;
    disconnect_value_drop(client, place);
    return STORE_OK;
}

static enum store_result disconnect_value_set(struct store_server *server, struct client *client,
                                              const struct store_message *message)
{
    struct disconnect_value **place = disconnect_value_find(client, message);
    if ((*place == NULL && client->disconnect_count == DISCONNECT_KEYS)
        || atomic_load(&server->map.bytes) > STORE_MAP_BYTES)
        return STORE_FULL;
    struct store_value *value = store_value_new(message->value, message->value_bytes, &server->map.bytes);
    struct disconnect_value *entry = *place != NULL ? *place : host_calloc(sizeof *entry + message->key_bytes);
    if (value == NULL || entry == NULL) {
        store_value_release(value);
        if (*place == NULL)
            host_free(entry);
        return STORE_NO_MEMORY;
    }
    store_value_release(entry->value);
    entry->value = value;
    entry->key_bytes = message->key_bytes;
    memcpy(entry->key, message->key, message->key_bytes);
    client->disconnect_count += *place == NULL;
    *place = entry;
    return STORE_OK;
}

/* Executes a request on the map and answers those who wait for its key. */
static enum store_result execute(struct store_value **value, struct store_server *server,
                                 const struct store_message *message)
{
    bool changed;
    const enum store_result result = store_map_execute(value, &changed, &server->map, message);
    if (changed && *value != NULL)
        answer_waits(server, message->key, message->key_bytes, *value);
    return result;
}

void client_request(struct store_server *server, struct client *client, const struct store_message *message)
{
    struct store_value *value = NULL;
    enum store_result result = STORE_OK;
    switch (message->op) {
    case STORE_AT_DISCONNECT:
        result = disconnect_value_set(server, client, message);
        break;
    case STORE_NOT_AT_DISCONNECT:
        result = disconnect_value_remove(client, message);
        break;
    case STORE_LEAVE:
        disconnect_values_free(client);
        break;
    case STORE_CANCEL:
        wait_cancel(server, client, message->id);
        return;
    case STORE_REPLY:
        client->dead = true;
        return;
    default:
        result = execute(&value, server, message);
    }
    if (message->op == STORE_GET && result == STORE_UNSET)
        wait_add(server, client, message);
    else
        send_reply(client, message->id, result, message->op != STORE_SET ? value : NULL);
    store_value_release(value);
}

void client_disconnect(struct store_server *server, struct client *client)
{
    while (client->waits != NULL)
        wait_remove(server, client->waits);
    for (const struct disconnect_value *entry = client->disconnect_values; entry != NULL; entry = entry->next) {
        const struct store_message message = {
            .op = STORE_SET, .key = entry->key, .key_bytes = entry->key_bytes,
            .value = entry->value->data, .value_bytes = entry->value->bytes,
        };
        struct store_value *value = NULL;
        execute(&value, server, &message);
        store_value_release(value);
    }
}

void client_clear(struct store_server *server, struct client *client)
{
    while (client->waits != NULL)
        wait_remove(server, client->waits);
    while (client->replies != NULL)
        reply_free(client, client->replies);
    disconnect_values_free(client);
}
