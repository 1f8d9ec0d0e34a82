/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream_site.c: where a stream's work was enqueued: the label (module path), and the backtrace if recorded. */
#include "base/backtrace.h"
#include "base/host_alloc.h"
#include "stream/stream.h"

void stream_note_site(ctrt_stream *stream, const char *name, const char *label, const struct backtrace *backtrace)
{
    if (label != stream->label && (*label != '\0' || stream->sites != NULL)) {
        if (stream->sites == NULL)
            stream->sites = host_calloc(STREAM_SITES * sizeof *stream->sites);
        if (stream->sites != NULL)
            stream->sites[stream->site_count++ % STREAM_SITES] = (struct stream_site){ stream->sequence, label };
    }
    stream->label = label;
    if (stream->works == NULL && backtrace != NULL)
        stream->works = host_calloc(STREAM_WORKS * sizeof *stream->works);
    if (stream->works != NULL)
        stream->works[stream->sequence % STREAM_WORKS] = (struct stream_work){ name, backtrace };
}

/* Returns NULL if that work is no longer remembered. */
static const struct stream_work *work_of(const ctrt_stream *stream, uint64_t sequence)
{
    const bool kept = stream->works != NULL && sequence + STREAM_WORKS > stream->sequence
                      && sequence <= stream->sequence;
    return kept ? &stream->works[sequence % STREAM_WORKS] : NULL;
}

static const char *label_of(const ctrt_stream *stream, uint64_t sequence)
{
    const uint64_t known = MIN(stream->site_count, STREAM_SITES);
    for (uint64_t i = 1; i <= known; i++) {
        const struct stream_site *site = &stream->sites[(stream->site_count - i) % STREAM_SITES];
        if (site->from <= sequence)
            return site->label;
    }
    return "";
}

void stream_site_text(char *text, size_t bytes, const ctrt_stream *stream, uint64_t sequence)
{
    const struct stream_work *work = work_of(stream, sequence);
    const char *label = label_of(stream, sequence);
    char calls[256] = "";
    if (work != NULL && work->backtrace != NULL)
        backtrace_place(calls, sizeof calls, work->backtrace);
    snprintf(text, bytes, "%s%s%s%s", *label != '\0' ? " in " : "", label, calls[0] != '\0' ? " at " : "", calls);
}

void stream_work_text(char *text, size_t bytes, timepoint point)
{
    ctrt_stream *stream = stream_at(timepoint_slot(point));
    char site[512];
    pthread_mutex_lock(&stream->lock);
    const struct stream_work *work = work_of(stream, timepoint_sequence(point));
    stream_site_text(site, sizeof site, stream, timepoint_sequence(point));
    snprintf(text, bytes, "%s on stream %llu of %s%s", work != NULL && work->name != NULL ? work->name : "work",
             (unsigned long long)ctrt_stream_id(stream), stream->device->name, site);
    pthread_mutex_unlock(&stream->lock);
}
