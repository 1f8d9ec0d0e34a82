/* SPDX-License-Identifier: Apache-2.0 */
/* base/param_parse.c: parses the text of a parameter's value. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "base/base.h"
#include "base/param.h"

#define MAX_WORDS 32

static ctrt_status malformed(const ctrt_param *param, const char *text, const char *wanted)
{
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: %s", param->name, text, wanted);
}

static ctrt_status parse_int(int64_t *out, const ctrt_param *param, const char *text)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0')
        return malformed(param, text, "expected an integer");
    if (errno == ERANGE)
        return malformed(param, text, "the number is too large");
    *out = value;
    return CTRT_OK;
}

static ctrt_status parse_bool(int64_t *out, const ctrt_param *param, const char *text)
{
    static const char *const yes[] = { "1", "yes", "true", "on" }, *const no[] = { "0", "no", "false", "off" };
    for (size_t i = 0; i < COUNT_OF(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return CTRT_OK;
        }
    }
    return malformed(param, text, "expected 1, yes, true, on, or 0, no, false, off");
}

/* Parses a size: "512k", "64m", "1g" or "2t" (powers of 1024, optionally followed by "b" or "ib"), or a number of
 * bytes. */
static ctrt_status parse_bytes(int64_t *out, const ctrt_param *param, const char *text)
{
    static const char units[] = "kmgt";
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[0]))
        return malformed(param, text, "expected a size such as 1048576, 512k, 64m or 1g");
    unsigned long long value = strtoull(text, &end, 10);
    int shift = 0;
    const char *unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
    if (unit != NULL) {
        shift = 10 * (int)(unit - units + 1);
        end++;
        if (tolower((unsigned char)end[0]) == 'i' && tolower((unsigned char)end[1]) == 'b')
            end++;
    }
    if (tolower((unsigned char)*end) == 'b')
        end++;
    if (*end != '\0')
        return malformed(param, text, "expected a size such as 1048576, 512k, 64m or 1g");
    if (errno == ERANGE || value > (unsigned long long)(INT64_MAX >> shift))
        return malformed(param, text, "the size is too large");
    *out = (int64_t)(value << shift);
    return CTRT_OK;
}

static ctrt_status parse_enum(int64_t *out, const ctrt_param *param, const char *text)
{
    char list[512];
    const char *words[MAX_WORDS];
    size_t count = 0;
    snprintf(list, sizeof list, "%s", param->words != NULL ? param->words : "");
    for (char *rest = list, *word; (word = strsep(&rest, "|")) != NULL && count < MAX_WORDS;) {
        if (strcasecmp(word, text) == 0) {
            *out = (int64_t)count;
            return CTRT_OK;
        }
        words[count++] = word;
    }
    const char *near = nearest_word(text, words, count);
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: expected one of %s%s%s%s", param->name, text,
                     param->words != NULL ? param->words : "(nothing)", near ? "; did you mean " : "",
                     near ? near : "", near ? "?" : "");
}

ctrt_status param_parse(int64_t *integer, const ctrt_param *param, const char *text)
{
    *integer = 0;
    switch (param->type) {
    case CTRT_PARAM_STRING: return CTRT_OK;
    case CTRT_PARAM_INT:    return parse_int(integer, param, text);
    case CTRT_PARAM_BOOL:   return parse_bool(integer, param, text);
    case CTRT_PARAM_BYTES:  return parse_bytes(integer, param, text);
    case CTRT_PARAM_ENUM:   return parse_enum(integer, param, text);
    }
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                     "%s=%s: declared with type %d, which is not a ctrt_param_type", param->name, text,
                     (int)param->type);
}
