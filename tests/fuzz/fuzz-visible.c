/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of visible devices: for any text, the resulting indices exist and are different. */
#include "device/visible.h"
#include "fuzz.h"

static const char *const fuzz_examples[] = {
    "0, 1, 2, -1, 3", "0, 1, 2, 1", "2, +3, -0, 5", "one,two,3,4", "4,3,two,one", "1gpu2,2ampere", "",
    "GPU-9942190a,GPU-9e", "cuda:0,cuda:2", "cuda,sim:1", "cuda:1,GPU-e4", "99999999999999999999", NULL,
};
static const char *const fuzz_words[] = {
    "cuda:", "sim", "GPU-", "GPU-99", "MIG-", ",", "-1", "+", "4294967296", "  ", NULL,
};

static void check_ids(const int *ids, int used, int limit)
{
    PROMISE(used >= 0 && used <= 16);
    for (int i = 0; i < used; i++) {
        PROMISE(ids[i] >= 0 && (limit < 0 || ids[i] < limit));
        for (int k = 0; k < i; k++)
            PROMISE(ids[i] != ids[k]);
    }
}

static void fuzz_text(const char *text)
{
    static const char *const uuids[] = { "GPU-9942190a", "GPU-9e8d35e3", "GPU-e429a63e", "GPU-e429" };
    int ids[16], used = 0;
    check_ids(ids, visible_parse(ids, 16, text, -1, NULL), -1);
    check_ids(ids, visible_parse(ids, 16, text, 4, uuids), 4);
    check_ids(ids, visible_parse(ids, 16, text, 0, NULL), 0);
    if (visible_select(ids, 16, &used, text, "cuda", 4, uuids) == CTRT_OK)
        check_ids(ids, used, 4);
    if (visible_select(ids, 16, &used, text, "sim", 0, NULL) == CTRT_OK)
        PROMISE(used == 0);
}

FUZZ_TEXT_MAIN
