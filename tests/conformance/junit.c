/* SPDX-License-Identifier: Apache-2.0 */
/* junit.c: writes JUnit XML. The cases are kept in memory, because the element before them has their numbers. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "junit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/utf8.h"

/* Writes `length` bytes of text for an attribute or an element. XML 1.0 has no control characters but tab and line
 * ends, not even escaped, and no U+FFFE and U+FFFF. */
static void escaped(FILE *out, const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + length;
    while (s < end) {
        const size_t bytes = utf8_sequence_length(s, (size_t)(end - s));
        const bool last = bytes == 3 && s[0] == 0xef && s[1] == 0xbf && s[2] >= 0xbe;
        const bool allowed = bytes > 0 && !last && *s != 0x7f
                             && (*s >= 0x20 || strchr("\t\n\r", *s) != NULL);
        if (!allowed)
            fputs("\xef\xbf\xbd", out);
        else if (*s < 0x20 || strchr("&<>\"", *s) != NULL)
            fprintf(out, "&#%d;", *s);
        else
            fwrite(s, 1, bytes, out);
        s += bytes > 0 ? bytes : 1;
    }
}

static void attribute(FILE *out, const char *name, const char *text, size_t length)
{
    fprintf(out, " %s=\"", name);
    escaped(out, text, length);
    putc('"', out);
}

static bool failed(const struct junit *junit, int error)
{
    fprintf(stderr, "ctrt check: --junit %s: %s\n", junit->path, strerror(error));
    return false;
}

bool junit_open(struct junit *junit, const char *path)
{
    *junit = (struct junit){ .path = path };
    if (path == NULL)
        return true;
    junit->file = fopen(path, "we");
    if (junit->file == NULL)
        return failed(junit, errno);
    junit->cases = open_memstream(&junit->text, &junit->length);
    if (junit->cases == NULL) {
        const int error = errno;
        fclose(junit->file);
        return failed(junit, error);
    }
    junit->begun = junit->last = seconds_now();
    return true;
}

void junit_case(struct junit *junit, const char *group, const char *name, enum junit_outcome outcome, const char *text)
{
    static const char *const elements[] = { [JUNIT_FAILED] = "failure", [JUNIT_SKIPPED] = "skipped" };
    FILE *out = junit->cases;
    if (out == NULL)
        return;
    const double now = seconds_now();
    fputs("  <testcase", out);
    attribute(out, "classname", group, strlen(group));
    attribute(out, "name", name, strlen(name));
    fprintf(out, " time=\"%.6f\"", now - junit->last);
    junit->last = now;
    junit->count[outcome]++;
    if (outcome == JUNIT_PASSED) {
        fputs("/>\n", out);
        return;
    }
    fprintf(out, ">\n    <%s", elements[outcome]);
    attribute(out, "message", text, strcspn(text, "\n"));
    putc('>', out);
    if (outcome == JUNIT_FAILED)
        escaped(out, text, strlen(text));
    fprintf(out, "</%s>\n  </testcase>\n", elements[outcome]);
}

bool junit_close(struct junit *junit, const char *suite)
{
    FILE *out = junit->file;
    if (out == NULL)
        return true;
    const int *count = junit->count;
    errno = ENOMEM;                             /* the only error of `cases` */
    bool written = !ferror(junit->cases);
    if (fclose(junit->cases) != 0)
        written = false;
    if (written) {
        fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite", out);
        attribute(out, "name", suite, strlen(suite));
        fprintf(out, " tests=\"%d\" failures=\"%d\" errors=\"0\" skipped=\"%d\" time=\"%.6f\">\n",
                count[JUNIT_PASSED] + count[JUNIT_FAILED] + count[JUNIT_SKIPPED], count[JUNIT_FAILED],
                count[JUNIT_SKIPPED], seconds_now() - junit->begun);
        fwrite(junit->text, 1, junit->length, out);
        fputs("</testsuite>\n</testsuites>\n", out);
        written = fflush(out) == 0 && !ferror(out);
    }
    const int error = errno;
    written = fclose(out) == 0 && written;
    free(junit->text);
    return written || failed(junit, error);
}
