/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/auth.c: the beginning of a connection to a tcp store. */
#include "parallel/store/auth.h"

#include <errno.h>
#include <sys/random.h>

#include "base/base.h"
#include "base/param.h"

static const char magic[8] = { 'c', 't', 'r', 't', '-', 's', 't', '1' };

static const ctrt_param secret_param = {
    sizeof secret_param, "CTRT_STORE_SECRET", CTRT_PARAM_STRING, NULL, NULL,
    "shared secret with which servers and clients of tcp:// stores authenticate each other",
};
CORE_SECRET_PARAM(secret_param);

ctrt_status store_secret(const char **secret)
{
    ctrt_param_value value = { 0 };
    CTRT_TRY(param_read(&value, &secret_param, "core"));
    *secret = value.text != NULL && value.text[0] != '\0' ? value.text : NULL;
    return CTRT_OK;
}

static bool random_bytes(uint8_t *out)
{
    ssize_t n;
    do
        n = getrandom(out, STORE_NONCE_BYTES, 0);
    while (n < 0 && errno == EINTR);
    return n == STORE_NONCE_BYTES;
}

/* `sender`: different for the two sides, so that neither can send back what it has received. */
static void make_mac(uint8_t mac[SHA256_BYTES], const char *secret, const char *sender, const struct store_hello *hello,
                     const struct store_answer *answer)
{
    struct hmac hmac;
    hmac_begin(&hmac, secret, strlen(secret));
    sha256_add(&hmac.inner, magic, sizeof magic);
    sha256_add(&hmac.inner, sender, strlen(sender));
    sha256_add(&hmac.inner, hello->nonce, sizeof hello->nonce);
    sha256_add(&hmac.inner, answer->nonce, sizeof answer->nonce);
    hmac_end(mac, &hmac);
}

static bool mac_valid(const uint8_t mac[SHA256_BYTES], const char *secret, const char *sender,
                      const struct store_hello *hello, const struct store_answer *answer)
{
    uint8_t want[SHA256_BYTES];
    make_mac(want, secret, sender, hello, answer);
    return sha256_equal(mac, want);
}

bool store_hello_write(struct store_hello *hello, const char *secret)
{
    memset(hello, 0, sizeof *hello);
    memcpy(hello->magic, magic, sizeof magic);
    hello->secret = secret != NULL;
    return random_bytes(hello->nonce);
}

bool store_answer_check(struct store_verdict *verdict, bool *garbage, const struct store_answer *answer,
                        const struct store_hello *hello, const char *secret)
{
    *garbage = memcmp(answer->magic, magic, sizeof magic) != 0;
    memset(verdict, 0, sizeof *verdict);
    memcpy(verdict->magic, magic, sizeof magic);
    if (*garbage || (secret != NULL && !mac_valid(answer->mac, secret, "client", hello, answer)))
        return false;
    verdict->accepted = STORE_ACCEPTED;
    if (secret != NULL)
        make_mac(verdict->mac, secret, "server", hello, answer);
    return true;
}

ctrt_status store_hello_check(struct store_answer *answer, const struct store_hello *hello, const char *secret)
{
    if (memcmp(hello->magic, magic, sizeof magic) != 0)
        return ctrt_fail(CTRT_ERR_COMM, "another program than a store's server, or one of another version, uses this "
                         "port");
    if (hello->secret && secret == NULL)
        return ctrt_fail(CTRT_ERR_COMM, "the server requires a secret; set CTRT_STORE_SECRET");
    if (!hello->secret && secret != NULL)
        return ctrt_fail(CTRT_ERR_COMM, "CTRT_STORE_SECRET is set, but the server has no secret");
    memset(answer, 0, sizeof *answer);
    memcpy(answer->magic, magic, sizeof magic);
    answer->secret = secret != NULL;
    if (!random_bytes(answer->nonce))
        return ctrt_fail(CTRT_ERR_COMM, "getrandom: %s", strerror(errno));
    if (secret != NULL)
        make_mac(answer->mac, secret, "client", hello, answer);
    return CTRT_OK;
}

ctrt_status store_verdict_check(const struct store_verdict *verdict, const struct store_answer *answer,
                                const struct store_hello *hello, const char *secret)
{
    if (memcmp(verdict->magic, magic, sizeof magic) != 0)
        return ctrt_fail(CTRT_ERR_COMM, "malformed answer of the server");
    if (verdict->accepted != STORE_ACCEPTED)
        return ctrt_fail(CTRT_ERR_COMM, "the server refused this process because its CTRT_STORE_SECRET is another one");
    if (secret != NULL && !mac_valid(verdict->mac, secret, "server", hello, answer))
        return ctrt_fail(CTRT_ERR_COMM, "the server does not know the secret (CTRT_STORE_SECRET)");
    return CTRT_OK;
}
