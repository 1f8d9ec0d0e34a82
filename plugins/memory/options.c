/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/options.c: see options.h. */
#include "options.h"

#include <stdio.h>
#include <string.h>

#include "source.h"

bool option_number(size_t *out, struct option_text value)
{
    size_t number = 0;
    for (size_t i = 0; i < value.length; i++) {
        if (value.at[i] < '0' || value.at[i] > '9' || number > SIZE_MAX / 16)
            return false;
        number = 10 * number + (size_t)(value.at[i] - '0');
    }
    *out = number;
    return value.length > 0;
}

static bool option_bytes(size_t *out, struct option_text value)
{
    static const char units[] = "kmg";
    unsigned shift = 0;
    if (value.length > 1) {
        char last = value.at[value.length - 1];
        const char *unit = last != '\0' ? strchr(units, last | 0x20) : NULL;
        if (unit != NULL && *unit != '\0') {
            shift = 10 * (unsigned)(unit - units + 1);
            value.length--;
        }
    }
    if (!option_number(out, value) || *out > SIZE_MAX >> shift)
        return false;
    *out <<= shift;
    return true;
}

static bool option_share(double *out, struct option_text value)
{
    double number = 0, digit = 1;
    bool point = false, some = false;
    for (size_t i = 0; i < value.length; i++) {
        if (value.at[i] == '.' && !point) {
            point = true;
        } else if (value.at[i] >= '0' && value.at[i] <= '9' && i < 20) {
            some = true;
            if (point)
                digit /= 10;
            number = point ? number + digit * (value.at[i] - '0') : 10 * number + (value.at[i] - '0');
        } else {
            return false;
        }
    }
    *out = number;
    return some;
}

static bool option_bool(bool *out, struct option_text value)
{
    static const char *const words[][2] = { { "false", "true" }, { "off", "on" }, { "no", "yes" }, { "0", "1" } };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int yes = 0; yes < 2; yes++)
            if (strlen(words[i][yes]) == value.length && memcmp(words[i][yes], value.at, value.length) == 0) {
                *out = yes;
                return true;
            }
    return false;
}

static bool option_read(const struct option *option, void *settings, struct option_text value)
{
    void *const at = (char *)settings + option->offset;
    size_t bytes;
    switch (option->kind) {
    case OPTION_BYTES:
        if (!option_bytes(&bytes, value) || bytes < option->least || (option->most > 0 && bytes > option->most)
            || (option->unit > 0 && bytes % option->unit != 0))
            return false;
        *(size_t *)at = bytes;
        return true;
    case OPTION_SHARE:
        return option_share(at, value) && *(double *)at > 0 && *(double *)at < 1;
    case OPTION_BOOL:
        return option_bool(at, value);
    default:
        return option->read(settings, value);
    }
}

/* ---- names ---- */

/* Returns the Levenshtein distance of two short words. */
static size_t policy_options_distance(const char *word, struct option_text other)
{
    enum { LONGEST = 32 };
    size_t row[LONGEST + 1], length = strlen(word);
    if (length > LONGEST)
        return SIZE_MAX;
    for (size_t i = 0; i <= length; i++)
        row[i] = i;
    for (size_t k = 0; k < other.length; k++) {
        size_t corner = row[0];
        row[0] = k + 1;
        for (size_t i = 0; i < length; i++) {
            size_t best = corner + (word[i] != other.at[k]);
            corner = row[i + 1];
            if (row[i] + 1 < best)
                best = row[i] + 1;
            if (corner + 1 < best)
                best = corner + 1;
            row[i + 1] = best;
        }
    }
    return row[length];
}

static ctrt_status policy_options_fail_unknown(const char *policy, const struct option *options, size_t count,
                                               struct option_text name)
{
    char known[256] = "", hint[64] = "";
    size_t used = 0, best = 4;
    for (size_t i = 0; i < count && used < sizeof known; i++) {
        size_t far = policy_options_distance(options[i].name, name);
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", options[i].name);
        if (far < best && far < name.length) {
            best = far;
            snprintf(hint, sizeof hint, "; did you mean %s?", options[i].name);
        }
    }
    return host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s has no option \"%.*s\"; known: %s%s", policy,
                      name.length < 64 ? (int)name.length : 64, name.at, known, hint);
}

/* Returns the length up to the next comma outside of brackets. */
static size_t item_length(const char *text)
{
    int depth = 0;
    size_t length = 0;
    for (; text[length] != '\0' && (text[length] != ',' || depth > 0); length++)
        depth += (text[length] == '[') - (text[length] == ']');
    return length;
}

ctrt_status options_read(const char *policy, const struct option *options, size_t count, void *settings,
                         const char *text)
{
    for (const char *at = text; at != NULL && *at != '\0';) {
        size_t length = item_length(at);
        const char *equals = memchr(at, '=', length);
        struct option_text name = { at, equals != NULL ? (size_t)(equals - at) : length };
        struct option_text value = { at, 0 };
        const struct option *found = NULL;
        if (equals != NULL)
            value = (struct option_text){ equals + 1, length - name.length - 1 };
        for (size_t i = 0; i < count && found == NULL; i++)
            if (strlen(options[i].name) == name.length && memcmp(options[i].name, at, name.length) == 0)
                found = &options[i];
        if (found == NULL)
            return policy_options_fail_unknown(policy, options, count, name);
        if (!option_read(found, settings, value))
            return host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s must be %s, not \"%.*s\"", policy, found->name,
                              found->wants, value.length < 128 ? (int)value.length : 128, value.at);
        at += length;
        at += *at == ',';
    }
    return CTRT_OK;
}
