/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu_overlap.c: measures whether copies from pinned memory and matrix products overlap: each kind alone, then
 * both on two streams. Can write a trace with the device times of each. */
#include "gpu.h"

enum { PIECES = 8 };

struct work {
    ctrt_tensor *host, *there, *a, *b, *c;
    ctrt_stream *side;
    int products;                           /* per copy */
    ctrt_event *base, *copy[PIECES][2], *compute[PIECES][2];
};

static void copy_piece(struct work *w, int i)
{
    bool asynchronous = false;
    gpu_check(ctrt_stream_push(w->side));
    gpu_check(ctrt_event_record(w->copy[i][0], w->side));
    gpu_check(ctrt_copy_non_blocking_(w->there, w->host, &asynchronous));
    gpu_check(ctrt_event_record(w->copy[i][1], w->side));
    gpu_check(ctrt_stream_pop());
}

static void compute_piece(struct work *w, int i)
{
    gpu_check(ctrt_event_record(w->compute[i][0], NULL));
    for (int p = 0; p < w->products; p++)
        gpu_check(ctrt_matmul(&w->c, w->a, w->b));
    gpu_check(ctrt_event_record(w->compute[i][1], NULL));
}

/* Milliseconds from the first start to the last end. */
static double run(struct work *w, bool copies, bool computes)
{
    double last = 0, first = 1e30;
    gpu_check(ctrt_device_synchronize(gpu));
    gpu_check(ctrt_event_record(w->base, NULL));
    gpu_check(ctrt_stream_wait_event(w->side, w->base));
    for (int i = 0; i < PIECES; i++) {
        if (copies)
            copy_piece(w, i);
        if (computes)
            compute_piece(w, i);
    }
    gpu_check(ctrt_device_synchronize(gpu));
    for (int i = 0; i < PIECES; i++)
        for (int kind = 0; kind < 2; kind++) {
            double begin = 0, end = 0;
            ctrt_event *const *pair = kind == 0 ? w->copy[i] : w->compute[i];
            if (!(kind == 0 ? copies : computes))
                continue;
            gpu_check(ctrt_event_elapsed(&begin, w->base, pair[0]));
            gpu_check(ctrt_event_elapsed(&end, w->base, pair[1]));
            first = begin < first ? begin : first;
            last = end > last ? end : last;
        }
    return last - first;
}

static double median(struct work *w, bool copies, bool computes)
{
    double samples[7];
    for (int i = 0; i < 7; i++)
        samples[i] = run(w, copies, computes);
    qsort(samples, 7, sizeof samples[0], timing_compare);
    return samples[3];
}

/* Writes the times of the last run, in microseconds, in the trace event format of chrome://tracing and Perfetto. */
static void write_trace(const struct work *w, const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        perror(path);
        exit(1);
    }
    fprintf(out, "{\"traceEvents\":[\n"
                 "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"thread_name\","
                 "\"args\":{\"name\":\"copies to the device\"}},\n"
                 "{\"ph\":\"M\",\"pid\":0,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"products\"}}");
    for (int i = 0; i < PIECES; i++)
        for (int kind = 0; kind < 2; kind++) {
            double begin = 0, end = 0;
            gpu_check(ctrt_event_elapsed(&begin, w->base, (kind == 0 ? w->copy : w->compute)[i][0]));
            gpu_check(ctrt_event_elapsed(&end, w->base, (kind == 0 ? w->copy : w->compute)[i][1]));
            fprintf(out, ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"name\":\"%s %d\",\"ts\":%.3f,\"dur\":%.3f}", kind,
                    kind == 0 ? "copy" : "products", i,
                    begin * 1e3, (end - begin) * 1e3);
        }
    fprintf(out, "\n]}\n");
    if (fclose(out) != 0) {
        perror(path);
        exit(1);
    }
}

void gpu_overlap(const char *trace)
{
    struct work w = { .products = 1 };
    const int64_t side = gpu_small ? 32 : 4096, n = gpu_small ? 4096 : (64 << 20) / 4;
    gpu_check(ctrt_stream_new(&w.side, gpu, 0));
    gpu_check(ctrt_empty_pinned(&w.host, CTRT_SHAPE(n), CTRT_F32, gpu));
    gpu_check(ctrt_fill_(w.host, ctrt_float(1)));
    gpu_check(ctrt_stream_push(w.side));
    gpu_check(ctrt_empty(&w.there, CTRT_SHAPE(n), CTRT_F32, gpu));
    gpu_check(ctrt_stream_pop());
    gpu_check(ctrt_randn(&w.a, CTRT_SHAPE(side, side), CTRT_F32, gpu));
    gpu_check(ctrt_randn(&w.b, CTRT_SHAPE(side, side), CTRT_F32, gpu));
    gpu_check(ctrt_event_new(&w.base, gpu, true));
    for (int i = 0; i < PIECES; i++)
        for (int end = 0; end < 2; end++) {
            gpu_check(ctrt_event_new(&w.copy[i][end], gpu, true));
            gpu_check(ctrt_event_new(&w.compute[i][end], gpu, true));
        }
    (void)run(&w, true, true);
    const double copies = median(&w, true, false);
    const double one = median(&w, false, true);
    w.products = one > 0 && copies / one < 64 ? (int)(copies / one) + 1 : 64;        /* about as long as a copy */
    printf("overlap_copies %.1f\n", copies * 1e6);
    printf("overlap_products %.1f\n", median(&w, false, true) * 1e6);
    printf("overlap_both %.1f\n", median(&w, true, true) * 1e6);
    fflush(stdout);
    if (trace != NULL)
        write_trace(&w, trace);
    for (int i = 0; i < PIECES; i++)
        for (int end = 0; end < 2; end++) {
            ctrt_event_release(&w.copy[i][end]);
            ctrt_event_release(&w.compute[i][end]);
        }
    ctrt_event_release(&w.base);
    ctrt_tensor_release(&w.host);
    ctrt_tensor_release(&w.there);
    ctrt_tensor_release(&w.a);
    ctrt_tensor_release(&w.b);
    ctrt_tensor_release(&w.c);
    ctrt_stream_release(&w.side);
}
