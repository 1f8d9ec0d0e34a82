/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of stores, executed on a map, and addresses HOST:PORT. '0' in the input stands for a zero byte, so that the
 * examples can be strings. */
#include "base/base.h"
#include "fuzz.h"
#include "parallel/store/store.h"
#include "parallel/store/map.h"

static const char *const fuzz_examples[] = {
    "1000\0010\0030" "\0050000000" "keyvalue" "2000\0020\0030" "00000000" "key",
    "1000\0030\0010" "\0100000000" "n1000000",
    "1000\004\001\0010" "\0010000000\0010" "nab" "1000\0050\0010" "00000000" "n",
    "1000\0060\0010" "\0020000000" "nab" "1000\0070\0010" "00000000" "n" "1000\01000000000000" "1000\01100000000000",
    "1000\01200000000000",
    "127.1.1.1:29599", "[fe89::1]:89", NULL,
};
static const char *const fuzz_words[] = {
    "1000\0010\0030" "\0010000000" "keyv", "1000\0030\0010" "\0100000000" "n1000000", "1000", "key", "\377", "[",
    "]:", NULL,
};

static void run_messages(const uint8_t *data, size_t size)
{
    static struct store_map map;
    struct store_message message;
    store_map_init(&map);
    for (size_t at = 0, bytes; at < size; at += bytes) {
        uint8_t again[1024];
        struct store_value *value = NULL;
        bool changed;
        const enum store_parsed parsed = store_message_parse(&message, &bytes, data + at, size - at);
        PROMISE(parsed == STORE_PARSED || parsed == STORE_INCOMPLETE || parsed == STORE_MALFORMED);
        PROMISE(parsed != STORE_INCOMPLETE || bytes == 0 || bytes > size - at);
        PROMISE(bytes <= sizeof(struct store_header) + STORE_KEY_BYTES + 2 * STORE_VALUE_BYTES);
        if (parsed != STORE_PARSED)
            break;
        PROMISE(bytes >= sizeof(struct store_header) && bytes <= size - at);
        PROMISE(store_message_write(again, &message) == bytes && memcmp(again, data + at, bytes) == 0);
        if (message.op > STORE_DELETE)
            continue;
        const enum store_result result = store_map_execute(&value, &changed, &map, &message);
        PROMISE(result != STORE_NO_MEMORY && result != STORE_FULL);
        PROMISE(result == STORE_OK || value == NULL);
        PROMISE(store_map_find(&map, message.key, message.key_bytes) == value || result != STORE_OK);
        store_value_release(value);
    }
    store_map_clear(&map);
    PROMISE(map.bytes == 0);
}

static int fuzz_one(const uint8_t *data, size_t size)
{
    uint8_t bytes[512];
    char text[513] = "", host[256];
    int port;
    if (size > sizeof bytes)
        return 0;
    memcpy(text, data, size);
    if (store_parse_host(host, &port, text) == CTRT_OK)
        PROMISE(port >= 0 && port <= 65535 && host[0] != '\0');
    for (size_t i = 0; i < size; i++)
        bytes[i] = data[i] == '0' ? 0 : data[i];
    run_messages(bytes, size);
    return 0;
}

FUZZ_MAIN
