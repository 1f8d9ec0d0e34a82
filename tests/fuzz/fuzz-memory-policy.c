/* SPDX-License-Identifier: Apache-2.0 */
/* CTRT_MEMORY: an accepted value has valid names, and its parts joined give the same text. */
#include "fuzz.h"
#include "memory/policy.h"
#include "registry/registry.h"

static const char *const fuzz_examples[] = {
    "caching", "caching:max_split=64m", "caching:max_split=64m,gc=0.8", "spill+caching", "a:x=1+b+c:y=2,z=3+d", "+",
    "a:", "a+b+c+d+e", "", NULL,
};
static const char *const fuzz_words[] = { "caching", ":max_split=64m", "+", ",", "=", ":", "direct", NULL };

static void fuzz_text(const char *text)
{
    char again[2048] = "";
    struct policy_spec specs[MEMORY_MAX_POLICIES];
    int count = -1;
    if (policy_parse(specs, &count, text) != CTRT_OK)
        return;
    PROMISE(count >= 1 && count <= MEMORY_MAX_POLICIES);
    for (int i = 0; i < count; i++) {
        PROMISE(registry_name_valid(specs[i].name));
        snprintf(again + strlen(again), sizeof again - strlen(again), "%s%s%s%s", i > 0 ? "+" : "",
                 specs[i].name, specs[i].options[0] != '\0' ? ":" : "", specs[i].options);
    }
    PROMISE(strcmp(again, text) == 0);
}

FUZZ_TEXT_MAIN
