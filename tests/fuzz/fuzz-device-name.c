/* SPDX-License-Identifier: Apache-2.0 */
/* Device names: an accepted name must be printed as it was written. */
#include "ctrt/device.h"
#include "fuzz.h"

static const char *const fuzz_examples[] = {
    "cpu",  "cpu:0", "cuda:1", "cuda", "nccl-multi:0", "cuda:65535", "cuda:01", "cuda:-1", "gpu:0",
    "auto", "",      ":",      "0",    "12",           "a:b:c",      NULL,
};
static const char *const fuzz_words[] = { "cpu", "cuda", ":0", ":65535", "99999999999999999999", "-multi", NULL };

static void fuzz_text(const char *text)
{
    char again[64];
    ctrt_device_spec spec = { "untouched", 77 };
    if (ctrt_device_parse(&spec, text) != CTRT_OK) {
        PROMISE(strcmp(spec.type, "untouched") == 0 && spec.index == 77);
        PROMISE(ctrt_error_message()[0] != '\0');
        return;
    }
    PROMISE(spec.index >= -1 && spec.index <= 65535);
    PROMISE(ctrt_device_format(again, sizeof again, &spec) == CTRT_OK);
    PROMISE(strcmp(again, text) == 0 || strspn(text, "0123456789") == strlen(text));
}

FUZZ_TEXT_MAIN
