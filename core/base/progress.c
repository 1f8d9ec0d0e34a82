/* SPDX-License-Identifier: Apache-2.0 */
/* base/progress.c: progress bars. */
#include "base/progress.h"

#include <math.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/host_alloc.h"
#include "base/param.h"

enum mode { MODE_AUTO, MODE_BAR, MODE_LINES, MODE_NO };         /* the words of CTRT_PROGRESS */

static const ctrt_param progress_param = {
    sizeof progress_param, "CTRT_PROGRESS", CTRT_PARAM_ENUM, "auto", "auto|bar|lines|no",
    "what progress bars write: auto (a bar on a terminal, else plain lines), bar, lines, no",
};
CORE_PARAM(progress_param);

#define SMOOTHING 0.3                   /* weight of the newest interval in the rate, as in tqdm */
#define NAME_BYTES 64
#define NOTE_BYTES 200

struct ctrt_progress {
    char name[NAME_BYTES], unit[NAME_BYTES], note[NOTE_BYTES];
    struct progress_state state;
    enum mode mode;
    int fd;
    double start, interval;
    double shown;                       /* time of the last write, or the start */
    int64_t shown_count;                /* the count at that time */
    double rate_sum, rate_weight;       /* exponential average of the rates of the intervals between writes */
};

/* ---- the text ---- */

/* Formats seconds as "MM:SS" or "H:MM:SS", or "?" if they are not known. */
static void format_seconds(char text[24], double seconds)
{
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(text, 24, "?");
        return;
    }
    const long long whole = (long long)(seconds + 0.5);
    if (whole >= 3600)
        snprintf(text, 24, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    else
        snprintf(text, 24, "%02lld:%02lld", whole / 60, whole % 60);
}

/* Formats a rate with three significant digits; below one unit a second, as seconds per unit. */
static void format_rate(char text[96], double rate, const char *unit)
{
    if (!(rate > 0))
        snprintf(text, 96, "? %s/s", unit);
    else if (rate < 1)
        snprintf(text, 96, "%.*f s/%s", rate > 0.1 ? 2 : rate > 0.01 ? 1 : 0, 1 / rate, unit);
    else
        snprintf(text, 96, "%.*f %s/s", rate < 9.995 ? 2 : rate < 99.95 ? 1 : 0, rate, unit);
}

char *progress_format(char line[PROGRESS_LINE], const struct progress_state *state, int columns, bool bar)
{
    char left[24], elapsed[24], rate[96], after[PROGRESS_LINE], before[NAME_BYTES + 16];
    const bool known = state->total > 0;
    const double within = (double)MAX(MIN(state->count, state->total), 0);
    const double done = known ? within / (double)state->total : 0;
    const char *space = state->name[0] != '\0' ? " " : "";
    format_seconds(elapsed, state->seconds);
    format_rate(rate, state->rate * state->scale, state->unit);
    if (known) {
        format_seconds(left, state->rate > 0 ? MAX((double)state->total - (double)state->count, 0) / state->rate
                             : state->count >= state->total ? 0 : -1);
        /* The percentage is rounded down, so it is 100 only when the last step is done. */
        snprintf(before, sizeof before, "%s%s%3d%%", state->name, space, (int)(100 * within / (double)state->total));
        snprintf(after, sizeof after, " %lld/%lld [%s<%s, %s]%s%s", (long long)state->count, (long long)state->total,
                 elapsed, left, rate, state->note[0] != '\0' ? " " : "", state->note);
    } else {
        snprintf(before, sizeof before, "%s", state->name);
        snprintf(after, sizeof after, "%s%lld [%s, %s]%s%s", space, (long long)state->count, elapsed, rate,
                 state->note[0] != '\0' ? " " : "", state->note);
    }
    const int width = known && bar ? columns - (int)strlen(before) - (int)strlen(after) - 2 : 0;
    const int cells = MIN(width, 60), full = (int)(done * cells);
    if (cells >= 4) {
        char filled[61], empty[61];
        memset(filled, '#', sizeof filled);
        memset(empty, ' ', sizeof empty);
        snprintf(line, (size_t)columns + 1, "%s|%.*s%.*s|%s", before, full, filled, cells - full, empty, after);
    } else {
        snprintf(line, (size_t)columns + 1, "%s%s", before, after);
    }
    /* Control characters would break the line. */
    for (char *c = line; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = ' ';
    return line;
}

/* ---- writing ---- */

static int terminal_columns(int fd)
{
    struct winsize size;
    const bool known = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
    /* The last column stays free, because some terminals begin a new line after it. */
    return known ? MIN(size.ws_col - 1, PROGRESS_LINE - 1) : 79;
}

static void progress_write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t written = write(fd, text, bytes);
        if (written <= 0)
            return;
        text += written;
        bytes -= (size_t)written;
    }
}

/* Updates the rate with the steps since the last write. Divides the weighted sum by the sum of its weights, so that the
 * average does not begin near 0. */
static void rate_update(ctrt_progress *progress, double time)
{
    const double seconds = time - progress->shown;
    const double steps = (double)progress->state.count - (double)progress->shown_count;
    if (seconds <= 0 || steps <= 0)
        return;
    progress->rate_sum += SMOOTHING * (steps / seconds - progress->rate_sum);
    progress->rate_weight += SMOOTHING * (1 - progress->rate_weight);
    progress->state.rate = progress->rate_sum / progress->rate_weight;
}

/* `last`: the line shows the average rate of the whole loop. */
static void progress_write_line(ctrt_progress *progress, double time, bool last)
{
    char line[PROGRESS_LINE], output[PROGRESS_LINE + 16];
    const bool bar = progress->mode == MODE_BAR;
    progress->state.seconds = time - progress->start;
    rate_update(progress, time);
    if (last && progress->state.seconds > 0)
        progress->state.rate = (double)progress->state.count / progress->state.seconds;
    progress->shown = time;
    progress->shown_count = progress->state.count;
    progress_format(line, &progress->state, bar ? terminal_columns(progress->fd) : PROGRESS_LINE - 1, bar);
    const int bytes = snprintf(output, sizeof output, "%s%s%s%s", bar ? "\r" : "", line, bar ? "\033[K" : "",
                               bar && !last ? "" : "\n");
    progress_write_all(progress->fd, output, (size_t)bytes);
}

ctrt_status ctrt_progress_new(ctrt_progress **out, int64_t total, const ctrt_progress_options *options)
{
    ctrt_progress_options own = CTRT_PROGRESS_OPTIONS;
    ctrt_param_value value = { 0 };
    NULL_CHECK("progress_new", out);
    CTRT_TRY(struct_read(&own, sizeof own, options, "progress_new", "options"));
    options = &own;
    if (total < 0 || own.scale < 1 || !(own.interval < INFINITY) || own.fd < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "progress_new: total %lld, scale %lld, interval %g, fd %d: expected "
                         "at least 0, at least 1, a finite number, at least 0", (long long)total, (long long)own.scale,
                         own.interval, own.fd);
    if (param_read(&value, &progress_param, "core") != CTRT_OK)
        log_message(CTRT_LOG_WARNING, "core", "%s", ctrt_error_message());
    ctrt_progress *progress = host_calloc(sizeof *progress);
    ALLOC_CHECK(progress, sizeof *progress, "a progress bar");
    snprintf(progress->name, sizeof progress->name, "%s", options->name != NULL ? options->name : "");
    snprintf(progress->unit, sizeof progress->unit, "%s", options->unit != NULL ? options->unit : "it");
    progress->fd = options->fd;
    progress->mode = options->silent ? MODE_NO : (enum mode)value.integer;
    if (progress->mode == MODE_AUTO)
        progress->mode = isatty(progress->fd) ? MODE_BAR : MODE_LINES;
    progress->interval = own.interval >= 0 ? own.interval : progress->mode == MODE_BAR ? 0.1 : 10;
    progress->state = (struct progress_state){ .name = progress->name, .unit = progress->unit, .note = progress->note,
                                               .total = total, .scale = (double)options->scale };
    progress->start = progress->shown = seconds_now();
    if (progress->mode == MODE_BAR)
        progress_write_line(progress, progress->start, false);
    ctrt_progress_release(out);
    *out = progress;
    return CTRT_OK;
}

bool ctrt_progress_due(const ctrt_progress *progress)
{
    return progress != NULL && progress->mode != MODE_NO && seconds_now() - progress->shown >= progress->interval;
}

void ctrt_progress_add(ctrt_progress *progress, int64_t steps)
{
    if (progress == NULL)
        return;
    if (__builtin_add_overflow(progress->state.count, steps, &progress->state.count))
        progress->state.count = steps > 0 ? INT64_MAX : INT64_MIN;
    if (progress->mode == MODE_NO)
        return;
    const double time = seconds_now();
    if (time - progress->shown >= progress->interval)
        progress_write_line(progress, time, false);
}

void ctrt_progress_note(ctrt_progress *progress, const char *format, ...)
{
    if (progress == NULL || format == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(progress->note, sizeof progress->note, format, arguments);
    va_end(arguments);
}

int64_t ctrt_progress_count(const ctrt_progress *progress)
{
    return progress != NULL ? progress->state.count : 0;
}

void ctrt_progress_release(ctrt_progress **progress)
{
    if (progress == NULL || *progress == NULL)
        return;
    if ((*progress)->mode != MODE_NO)
        progress_write_line(*progress, seconds_now(), true);
    host_free(*progress);
    *progress = NULL;
}
