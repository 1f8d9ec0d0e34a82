/* SPDX-License-Identifier: Apache-2.0 */
/* device/parse.c: parses and formats device names such as "cuda:1". */
#include <strings.h>

#include "base/base.h"
#include "device/internal.h"
#include "registry/registry.h"

#define MAX_INDEX 65535

/* Words that users often write for a device but that are not types; the first three mean an accelerator. */
static const char *const no_types[] = { "gpu", "device", "accelerator", "auto", "default", "none", "null" };
#define ACCELERATOR_WORDS 3

static ctrt_status fail_name(const char *text, const char *why)
{
    return ctrt_fail(
        CTRT_ERR_INVALID_ARGUMENT,
        "\"%.64s\" is not a device name: %s. Expected TYPE or TYPE:INDEX, as in cpu or cuda:1", text, why);
}

static bool is_word(const char *type, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(type, no_types[i]) == 0)
            return true;
    return false;
}

/* Writes the known types. By edit distance "gpu" is nearest to "cpu", so suggest cuda for such words if it is known. */
static void known_types(char *known, size_t bytes, const char *type)
{
    const char *names[64];
    registry_known(known, bytes, CTRT_COMPONENT_BACKEND, is_word(type, COUNT_OF(no_types)) ? "" : type);
    const size_t count = registry_names(names, COUNT_OF(names), CTRT_COMPONENT_BACKEND), used = strlen(known);
    for (size_t i = 0; i < count && is_word(type, ACCELERATOR_WORDS); i++)
        if (strcmp(names[i], "cuda") == 0)
            snprintf(known + used, bytes - used, "; did you mean cuda?");
}

static ctrt_status fail_type(const char *text, const char *type)
{
    char known[512], why[640];
    known_types(known, sizeof known, type);
    snprintf(why, sizeof why, "unknown device type %.40s; known types: %s", type, known);
    return fail_name(text, why);
}

/* Parses digits without a leading zero, at most MAX_INDEX. */
static ctrt_status parse_index(int *out, const char *text, const char *digits)
{
    size_t length = strspn(digits, "0123456789");
    if (length == 0 || digits[length] != '\0')
        return fail_name(text, "the index is not a number from 0");
    if (length > 1 && digits[0] == '0')
        return fail_name(text, "the index has a leading zero");
    int value = 0;
    for (size_t i = 0; i < length && value <= MAX_INDEX; i++)
        value = 10 * value + (digits[i] - '0');
    if (value > MAX_INDEX)
        return fail_name(text, "the index is too large");
    *out = value;
    return CTRT_OK;
}

static ctrt_status check_type(const char *text, const char *type)
{
    return registry_name_valid(type) && !is_word(type, COUNT_OF(no_types)) ? CTRT_OK : fail_type(text, type);
}

ctrt_status ctrt_device_parse(ctrt_device_spec *out, const char *text)
{
    if (out == NULL || text == NULL)
        return fail_null("device_parse", out == NULL ? "out" : "text");
    ctrt_device_spec spec = { "", -1 };
    if (text[0] == '\0')
        return fail_name(text, "it is empty");
    if (strspn(text, "0123456789") == strlen(text)) {
        CTRT_TRY(parse_index(&spec.index, text, text));
        CTRT_TRY(device_best_accelerator(spec.type));
        *out = spec;
        return CTRT_OK;
    }
    size_t length = strcspn(text, ":");
    if (length == 0)
        return fail_name(text, "the type is missing");
    if (length >= sizeof spec.type)
        return fail_name(text, "the type is too long");
    memcpy(spec.type, text, length);
    CTRT_TRY(check_type(text, spec.type));
    if (text[length] == ':') {
        if (text[length + 1] == '\0')
            return fail_name(text, "the index after ':' is missing");
        CTRT_TRY(parse_index(&spec.index, text, text + length + 1));
    }
    if (type_is_cpu(spec.type) && spec.index > 0)
        return fail_name(text, "the only cpu has index 0");
    *out = spec;
    return CTRT_OK;
}

ctrt_status ctrt_device_format(char *buffer, size_t bytes, const ctrt_device_spec *spec)
{
    if (buffer == NULL || spec == NULL)
        return fail_null("device_format", buffer == NULL ? "buffer" : "spec");
    if (bytes > 0)
        buffer[0] = '\0';
    if (memchr(spec->type, '\0', sizeof spec->type) == NULL || spec->index < -1 || spec->index > MAX_INDEX)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "device_format: the type is not terminated, or the index is %d",
                         spec->index);
    CTRT_TRY(check_type(spec->type, spec->type));
    int length = spec->index < 0 ? snprintf(buffer, bytes, "%s", spec->type)
                                 : snprintf(buffer, bytes, "%s:%d", spec->type, spec->index);
    if (length < 0 || (size_t)length >= bytes)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "device_format: the buffer of %zu bytes is too small for %d characters and the terminator",
                         bytes,
                         length);
    return CTRT_OK;
}
