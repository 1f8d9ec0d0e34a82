/* SPDX-License-Identifier: Apache-2.0 */
/* Progress bars: the text of the line, and what is written to a terminal, to a file and under CTRT_PROGRESS. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "../options.h"
#include "base/param.h"
#include "base/progress.h"
#include "tap.h"

TEST(lines, "the line: percentage, bar, count, times, rate, note")
{
    static const struct { struct progress_state state; int columns; bool bar; const char *want; } cases[] = {
        { { "train", "images", "loss 0.5", 500, 210, 12.4, 17.1, 1 }, 79, true,
          "train  42%|########             | 210/500 [00:12<00:17, 17.1 images/s] loss 0.5" },
        { { "", "it", "", 500, 210, 12.4, 17.1, 1 }, 50, true, " 42%|####       | 210/500 [00:12<00:17, 17.1 it/s]" },
        { { "", "it", "", 1000, 999, 3725, 0.5, 1 }, 60, true,
          " 99%|################# | 999/1000 [1:02:05<00:02, 2.00 s/it]" },
        { { "", "it", "", 4, 4, 2, 2, 1 }, 30, true, "100% 4/4 [00:02<00:00, 2.00 it" },    /* no place for a bar */
        { { "e", "it", "", 4, 0, 0, 0, 1 }, 200, false, "e   0% 0/4 [00:00<?, ? it/s]" },
        { { "e", "it", "", 0, 77, 7, 11, 1 }, 200, true, "e 77 [00:07, 11.0 it/s]" },       /* the total is unknown */
        { { "", "images", "", 10, 5, 1, 5, 64 }, 200, false, " 50% 5/10 [00:01<00:01, 320 images/s]" },
        { { "", "it", "a\nb\033c", 2, 1, 1, 1, 1 }, 200, false, " 50% 1/2 [00:01<00:01, 1.00 it/s] a b c" },
        { { "", "it", "", 2, 3, 1, 3, 1 }, 200, false, "100% 3/2 [00:01<00:00, 3.00 it/s]" },
        { { "", "it", "", 100, 29, 1, 1, 1 }, 200, false, " 29% 29/100 [00:01<01:11, 1.00 it/s]" },
        { { "", "it", "", INT64_MAX, INT64_MIN, 1, 0, 1 }, 200, false,
          "  0% -9223372036854775808/9223372036854775807 [00:01<?, ? it/s]" },
        { { "", "it", "", 10, -5, 1, 1, 1 }, 50, true, "  0%|             | -5/10 [00:01<00:15, 1.00 it/s]" },
    };
    EACH(c, cases) {
        char line[PROGRESS_LINE];
        CHECK_STR(progress_format(line, &c->state, c->columns, c->bar), c->want);
    }
}

/* Runs a bar of three steps that writes to `fd` at each step, and returns what can be read from `from`. */
static const char *written(int fd, int from, const char *mode)
{
    static char text[4096];
    ctrt_progress *bar = NULL;
    ssize_t bytes = 0;
    param_forget_values();
    setenv("CTRT_PROGRESS", mode, 1);
    CHECK_OK(ctrt_progress_new(&bar, 3, PROGRESS(.name = "x", .fd = fd, .interval = 1e-300)));
    for (int i = 0; i < 3; i++) {
        ctrt_progress_note(bar, "n%d", i);
        ctrt_progress_add(bar, 1);
    }
    CHECK_EQ(ctrt_progress_count(bar), 3);
    ctrt_progress_release(&bar);
    CHECK_TRUE(bar == NULL);
    for (ssize_t got; (got = read(from, text + bytes, sizeof text - 1 - (size_t)bytes)) > 0; )
        bytes += got;
    text[bytes] = '\0';
    return text;
}

static int count(const char *text, char c)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += *text == c;
    return n;
}

TEST(outputs, "a terminal gets one line, a pipe plain lines, CTRT_PROGRESS=no nothing")
{
    static const struct { const char *mode; bool terminal; int returns, newlines; } cases[] = {
        { "auto", true, 5, 1 }, { "auto", false, 0, 4 }, { "bar", false, 5, 1 }, { "lines", true, 0, 4 },
        { "no", true, 0, 0 },   { "no", false, 0, 0 },
    };
    EACH(c, cases) {
        int ends[2];
        if (c->terminal) {
            ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
            REQUIRE(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0, "no pseudoterminal");
            ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
        } else {
            REQUIRE_TRUE(pipe(ends) == 0);
        }
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        const char *text = written(ends[1], ends[0], c->mode);
        /* The terminal adds a return to each newline. */
        CHECK_EQ(count(text, '\r') - (c->terminal ? c->newlines : 0), c->returns);
        CHECK_EQ(count(text, '\n'), c->newlines);
        if (strcmp(c->mode, "no") != 0)
            CHECK_HAS(text, " 3/3 [00:00<00:00, ");
        close(ends[0]), close(ends[1]);
    }
}

TEST(interval, "nothing is written within the interval, and nothing by a silent bar")
{
    int ends[2];
    char byte;
    ctrt_progress *bar = NULL;
    REQUIRE_TRUE(pipe(ends) == 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    setenv("CTRT_PROGRESS", "auto", 1);
    param_forget_values();
    for (int silent = 0; silent < 2; silent++) {
        CHECK_OK(ctrt_progress_new(&bar, 0, PROGRESS(.fd = ends[1], .silent = silent)));
        CHECK_TRUE(!ctrt_progress_due(bar));
        ctrt_progress_add(bar, 1);
        CHECK(read(ends[0], &byte, 1) < 0, "something was written");
        ctrt_progress_add(bar, INT64_MAX);
        CHECK_EQ(ctrt_progress_count(bar), INT64_MAX);
        ctrt_progress_release(&bar);
        CHECK_EQ(read(ends[0], &byte, 1), silent ? -1 : 1);
        while (read(ends[0], &byte, 1) > 0)
            ;
    }
    close(ends[0]), close(ends[1]);
}

TEST(bad, "bad input")
{
    ctrt_progress *bar = NULL;
    CHECK_FAILS(ctrt_progress_new(&bar, 1, PROGRESS(.scale = -1)), CTRT_ERR_INVALID_ARGUMENT, "scale -1");
    CHECK_FAILS(ctrt_progress_new(&bar, 1, PROGRESS(.interval = NAN)), CTRT_ERR_INVALID_ARGUMENT, "interval nan");
    CHECK_FAILS(ctrt_progress_new(&bar, 1, PROGRESS(.fd = -1)), CTRT_ERR_INVALID_ARGUMENT, "fd -1");
    CHECK_FAILS(ctrt_progress_new(&bar, -1, NULL), CTRT_ERR_INVALID_ARGUMENT, "total -1");
}

TEST_MAIN
{
    return run_tests();
}
