/* SPDX-License-Identifier: Apache-2.0 */
/* registry/select.c: the parameter CTRT_BACKENDS. "cuda,cpu" allows only these backends, "-cuda" all except cuda. */
#include <stdlib.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "registry/internal.h"

static const ctrt_param backends_param = {
    sizeof backends_param, "CTRT_BACKENDS", CTRT_PARAM_STRING, NULL, NULL,
    "backends that may be used (cuda,cpu), or with '-' those that may not (-cuda); default: all",
};
CORE_PARAM(backends_param);

static bool known(const char *word)
{
    const char *names[64];
    size_t count = registry_names(names, COUNT_OF(names), CTRT_COMPONENT_BACKEND);
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], word) == 0)
            return true;
    return false;
}

static char *trim(char *word)
{
    word += strspn(word, " \t");
    word[strcspn(word, " \t")] = '\0';
    return word;
}

ctrt_status select_backend(const char *name)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &backends_param, "core"));
    if (value.text == NULL || value.text[0] == '\0')
        return CTRT_OK;
    HOST_AUTO char *copy = host_strdup(value.text);
    ALLOC_CHECK(copy, strlen(value.text), "CTRT_BACKENDS");

    bool some_allowed = false, allowed = false, denied = false;
    for (char *rest = copy, *word; (word = strsep(&rest, ",")) != NULL;) {
        word = trim(word);
        bool deny = word[0] == '-';
        word += deny;
        if (word[0] == '\0')
            continue;
        char list[512];
        if (!known(word))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                             "CTRT_BACKENDS=%s: there is no backend %s; known: %s", value.text, word,
                             registry_known(list, sizeof list, CTRT_COMPONENT_BACKEND, word));
        if (deny)
            denied = denied || strcmp(word, name) == 0;
        else
            some_allowed = true, allowed = allowed || strcmp(word, name) == 0;
    }
    if (denied || (some_allowed && !allowed))
        return ctrt_fail(CTRT_ERR_NO_DEVICE, "switched off by CTRT_BACKENDS=%s", value.text);
    return CTRT_OK;
}
