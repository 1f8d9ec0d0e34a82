/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/message.c: the bytes of messages, and values. */
#include "parallel/store/message.h"

#include "base/base.h"
#include "base/host_alloc.h"

/* The limits of each op. */
static const struct {
    uint8_t flags;                      /* largest value */
    uint16_t least_key, most_key;
    uint32_t least_value, most_value, most_other;
} limits[STORE_OPS] = {
    [STORE_SET]           = { 0, 1, STORE_KEY_BYTES, 0, STORE_VALUE_BYTES, 0 },
    [STORE_GET]           = { 0, 1, STORE_KEY_BYTES, 0, 0, 0 },
    [STORE_ADD]           = { 0, 1, STORE_KEY_BYTES, sizeof(int64_t), sizeof(int64_t), 0 },
    [STORE_COMPARE_SET]   = { STORE_EXPECTED, 1, STORE_KEY_BYTES, 0, STORE_VALUE_BYTES, STORE_VALUE_BYTES },
    [STORE_DELETE]        = { 0, 1, STORE_KEY_BYTES, 0, 0, 0 },
    [STORE_AT_DISCONNECT] = { 0, 1, STORE_KEY_BYTES, 0, STORE_DISCONNECT_BYTES, 0 },
    [STORE_NOT_AT_DISCONNECT] = { 0, 1, STORE_KEY_BYTES, 0, 0, 0 },
    [STORE_CANCEL]        = { 0, 0, 0, 0, 0, 0 },
    [STORE_LEAVE]         = { 0, 0, 0, 0, 0, 0 },
    [STORE_REPLY]         = { STORE_RESULTS - 1, 0, 0, 0, STORE_VALUE_BYTES, 0 },
};

static bool header_valid(const struct store_header *header)
{
    if (header->op == 0 || header->op >= STORE_OPS)
        return false;
    return header->flags <= limits[header->op].flags && header->key_bytes >= limits[header->op].least_key
           && header->key_bytes <= limits[header->op].most_key
           && header->value_bytes >= limits[header->op].least_value
           && header->value_bytes <= limits[header->op].most_value
           && header->other_bytes <= limits[header->op].most_other
           && (header->op != STORE_COMPARE_SET || header->flags == STORE_EXPECTED || header->other_bytes == 0);
}

enum store_parsed store_message_parse(struct store_message *out, size_t *size, const void *bytes, size_t available)
{
    struct store_header header;
    *size = 0;
    if (available < sizeof header)
        return STORE_INCOMPLETE;
    memcpy(&header, bytes, sizeof header);
    if (!header_valid(&header))
        return STORE_MALFORMED;
    *size = sizeof header + header.key_bytes + header.value_bytes + header.other_bytes;
    if (available < *size)
        return STORE_INCOMPLETE;
    const char *key = (const char *)bytes + sizeof header;
    if (memchr(key, '\0', header.key_bytes) != NULL)
        return STORE_MALFORMED;
    *out = (struct store_message) {
        .id = header.id, .op = header.op, .flags = header.flags, .key = key, .key_bytes = header.key_bytes,
        .value = key + header.key_bytes, .value_bytes = header.value_bytes,
        .other = key + header.key_bytes + header.value_bytes, .other_bytes = header.other_bytes,
    };
    return STORE_PARSED;
}

static unsigned char *append(unsigned char *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
    return to + bytes;
}

size_t store_message_write(void *bytes, const struct store_message *message)
{
    const struct store_header header = {
        message->id, message->op, message->flags, (uint16_t)message->key_bytes, (uint32_t)message->value_bytes,
        (uint32_t)message->other_bytes,
    };
    if (bytes != NULL) {
        unsigned char *end = append(bytes, &header, sizeof header);
        end = append(end, message->key, message->key_bytes);
        end = append(end, message->value, message->value_bytes);
        append(end, message->other, message->other_bytes);
    }
    return sizeof header + message->key_bytes + message->value_bytes + message->other_bytes;
}

struct store_value *store_value_new(const void *data, size_t bytes, _Atomic size_t *account)
{
    struct store_value *value = host_alloc(sizeof *value + bytes);
    if (value == NULL)
        return NULL;
    atomic_init(&value->references, 1);
    value->account = account;
    value->bytes = bytes;
    if (account != NULL)
        atomic_fetch_add(account, bytes);
    if (data != NULL && bytes > 0)
        memcpy(value->data, data, bytes);
    return value;
}

void store_value_release(struct store_value *value)
{
    if (value == NULL || atomic_fetch_sub_explicit(&value->references, 1, memory_order_acq_rel) > 1)
        return;
    if (value->account != NULL)
        atomic_fetch_sub(value->account, value->bytes);
    host_free(value);
}
