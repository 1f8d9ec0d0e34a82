/* SPDX-License-Identifier: Apache-2.0 */
/* Values of parameters of every type, and nearest_word. */
#include "base/base.h"
#include "base/param.h"
#include "fuzz.h"

static const char *const fuzz_examples[] = {
    "1", "-7", "64m", "1GiB", "512k", "yes", "off", "TRUE", "error", "warning", "99999999999999999999",
    "9223372036854775807", "8388607t", "", NULL,
};
static const char *const fuzz_words[] = { "9223372036854775807", "k", "m", "iB", "tb", "-", "yes", "warn", NULL };

static void fuzz_text(const char *text)
{
    static const char *const words[] = { "error", "warning", "info", "debug" };
    for (int type = CTRT_PARAM_STRING; type <= CTRT_PARAM_ENUM; type++) {
        const ctrt_param param
            = { sizeof param, "CTRT_FUZZ", (ctrt_param_type)type, NULL, "error|warning|info|debug", "" };
        int64_t value = -99;
        ctrt_status status = param_parse(&value, &param, text);
        PROMISE(status == CTRT_OK || status == CTRT_ERR_INVALID_ARGUMENT);
        if (status != CTRT_OK)
            continue;
        PROMISE(type != CTRT_PARAM_BOOL || value == 0 || value == 1);
        PROMISE(type != CTRT_PARAM_BYTES || value >= 0);
        PROMISE(type != CTRT_PARAM_ENUM || (value >= 0 && value < 4));
    }
    const char *near = nearest_word(text, words, 4);
    PROMISE(near == NULL || strlen(text) <= 64);
}

FUZZ_TEXT_MAIN
