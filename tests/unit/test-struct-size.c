/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that programs pass to the library and that it writes, of programs compiled with other headers: fewer members,
 * more members, no size. tests/headers.sh checks that each struct with an initializer macro is here. */
#include "calls.h"
#include "folder.h"
#include "tensors.h"

/* A struct of the program, with what follows it in memory. */
union words { size_t size; ctrt_training_state run; unsigned char bytes[8192]; };
struct reads { const char *name; size_t bytes; const void *full; ctrt_status (*call)(const void *given); };

static ctrt_memory_scope *scope;
static ctrt_module *module;
static ctrt_tensor *image, *filter, *rows, *target;
static ctrt_dataset *dataset;
static ctrt_loader *loader;
static ctrt_training_state run;
static char path[256];

static ctrt_status stats(void *out) { return ctrt_memory_get_stats(out, cpu); }
static ctrt_status peaks(void *out) { return ctrt_memory_scope_read(out, scope); }
static ctrt_status properties(void *out) { return ctrt_device_get_properties(out, "cpu"); }
static ctrt_status usage(void *out) { return ctrt_device_get_usage(out, "cpu"); }
static ctrt_status link_of(void *out) { return ctrt_device_get_link(out, "cpu", "cpu"); }
static ctrt_status parameter(void *out) { return ctrt_param_get_info(out, 0); }
static ctrt_status plugin(void *out) { return ctrt_plugin_list(out, 0); }
static ctrt_status scaler(void *out)
{
    CTRT_AUTO(grad_scaler) scaler = NULL;
    CTRT_TRY(ctrt_grad_scaler_new(&scaler, NULL));
    return ctrt_grad_scaler_get_state(out, scaler);
}
static ctrt_status prediction(void *out)
{
    ctrt_dry_run *run = NULL;
    CTRT_TRY(ctrt_dry_run_begin(&run, cpu));
    const ctrt_status status = ctrt_dry_run_end(out, &run);
    ctrt_dry_run_release(&run);
    return status;
}

static ctrt_status counts(void *out) { return ctrt_layout_count(out, cpu); }
static ctrt_status place(void *out) { return ctrt_loader_get_state(out, loader); }
static ctrt_status piece(void *user, int64_t from, int64_t to, double weight)
{
    (void)user, (void)from, (void)to, (void)weight;
    return CTRT_OK;
}
static ctrt_status pieces(void *out)
{
    CTRT_AUTO(split) split = NULL;
    CTRT_TRY(ctrt_split_new(&split, module, NULL));
    return ctrt_split_step(out, split, 1, piece, NULL);
}

TEST(writing, "no byte behind the caller's struct is written, and members that the library lacks are 0")
{
#define WRITES(type, call) { #type, sizeof(ctrt_##type), call }
    static const struct written { const char *name; size_t bytes; ctrt_status (*call)(void *out); } all[] = {
        WRITES(memory_stats, stats),           WRITES(memory_peaks, peaks),
        WRITES(device_properties, properties), WRITES(usage, usage),
        WRITES(link, link_of),                 WRITES(param_info, parameter),
        WRITES(plugin_info, plugin),           WRITES(grad_scaler_state, scaler),
        WRITES(memory_prediction, prediction), WRITES(layout_counts, counts),
        WRITES(loader_state, place),           WRITES(split_result, pieces),
    };
    union words own, other;
    CHECK_OK(ctrt_memory_scope_begin(&scope, cpu));
    EACH(w, all) {
        memset(&own, 0xaa, sizeof own);
        own.size = w->bytes;
        CHECK(w->call(&own) == CTRT_OK, "%s: %s", w->name, ctrt_error_message());
        CHECK(own.size == w->bytes, "%s: the size is changed", w->name);
        for (int more = -8; more <= 16; more += 8) {
            memset(&other, 0xaa, sizeof other);
            const size_t size = other.size = w->bytes + (size_t)more, common = more < 0 ? size : w->bytes;
            CHECK(w->call(&other) == CTRT_OK, "%s: %s", w->name, ctrt_error_message());
            size_t zeros = common, kept = size;
            while (zeros < size && other.bytes[zeros] == 0)
                zeros++;
            while (kept < sizeof other && other.bytes[kept] == 0xaa)
                kept++;
            CHECK(zeros == size || more < 0, "%s with %d bytes more: byte %zu is not 0", w->name, more, zeros);
            CHECK(kept == sizeof other, "%s with %d bytes more: byte %zu is written", w->name, more, kept);
        }
        other.size = 0;
        CHECK_FAILS(w->call(&other), CTRT_ERR_INVALID_ARGUMENT, "is not initialized (its size is 0)");
    }
    ctrt_memory_scope_release(&scope);
}

/* ---- structs that the library reads ---- */

#define NEW(name, type, call)                       \
    static ctrt_status name(const void *given)      \
    {                                               \
        CTRT_AUTO(type) made = NULL;                \
        return call;                                \
    }
NEW(scaler_new, grad_scaler, ctrt_grad_scaler_new(&made, given))
NEW(comm_new_local, comm, ctrt_comm_new_local(&made, &cpu, 1, given))
NEW(loader_new, loader, ctrt_loader_new(&made, dataset, given))
NEW(read_image, tensor, ctrt_read_image_with(&made, "/nonexistent.bmp", given))
NEW(csv_new, dataset, ctrt_csv_dataset(&made, "/nonexistent.csv", given))
NEW(tokens_new, dataset, ctrt_tokens_dataset(&made, "/nonexistent.tokens", given))
NEW(batch_norm_new, module, ctrt_batch_norm2d_new(&made, 3, given, cpu))
NEW(layer_norm_new, module, ctrt_layer_norm_new(&made, CTRT_SHAPE(3), given, cpu))
NEW(embedding_new, module, ctrt_embedding_new(&made, 3, 2, given, cpu))
NEW(multihead_attention_new, module, ctrt_multihead_attention_new(&made, 4, 2, given, cpu))
NEW(conv2d, tensor, ctrt_conv2d(&made, image, filter, NULL, given))
NEW(conv2d_new, module, ctrt_conv2d_new(&made, 2, 4, 1, 1, given, true, cpu))
NEW(max_pool2d, tensor, ctrt_max_pool2d(&made, NULL, image, given))
NEW(max_pool2d_new, module, ctrt_max_pool2d_new(&made, given))
NEW(cross_entropy, tensor, ctrt_cross_entropy(&made, rows, target, given))
NEW(attention, tensor, ctrt_scaled_dot_product_attention(&made, image, image, image, NULL, given))
NEW(sgd_new, optimizer, ctrt_sgd_new(&made, module, given))
NEW(adam_new, optimizer, ctrt_adam_new(&made, module, given))
NEW(adamw_new, optimizer, ctrt_adamw_new(&made, module, given))
NEW(rmsprop_new, optimizer, ctrt_rmsprop_new(&made, module, given))
NEW(adagrad_new, optimizer, ctrt_adagrad_new(&made, module, given))
NEW(nadam_new, optimizer, ctrt_nadam_new(&made, module, given))
NEW(progress_new, progress, ctrt_progress_new(&made, 1, given))
NEW(split_new, split, ctrt_split_new(&made, module, given))
static ctrt_status autocast(const void *given)
{
    CTRT_TRY(ctrt_autocast_push("cpu", given));
    return ctrt_autocast_pop();
}
static ctrt_status scaler_set(const void *given)
{
    CTRT_AUTO(grad_scaler) scaler = NULL;
    CTRT_TRY(ctrt_grad_scaler_new(&scaler, NULL));
    return ctrt_grad_scaler_set_state(scaler, given);
}
static ctrt_status loader_restore(const void *given) { return ctrt_loader_restore(loader, given); }
static ctrt_status training_save(const void *given) { return ctrt_training_save(path, given); }
static ctrt_status pick(const void *given)
{
    ctrt_device_spec list[1];
    size_t count = 0;
    return ctrt_pick_devices(list, &count, 1, given);
}
static ctrt_status chunks(const void *given)
{
    int64_t sizes[2];
    int count = 0;
    return ctrt_chunk_sizes(sizes, &count, 5, 2, given);
}
static ctrt_status crop(const void *given)
{
    return ctrt_image_random_resized_crop(&(ctrt_image){ 0 }, &(ctrt_image){ 0 }, given, &(ctrt_sample_random){ 0 });
}

/* Checks that a call with `given` returns the status and message that the defaults return. */
static void same_result(const struct reads *r, const union words *given, const char *what, ctrt_status status,
                        const char *message)
{
    CHECK(r->call(given) == status, "%s with %s: got %s, expected '%s'", r->name, what, ctrt_error_message(), message);
    CHECK(status == CTRT_OK || strcmp(ctrt_error_message(), message) == 0, "%s with %s: %s, expected '%s'", r->name,
          what, ctrt_error_message(), message);
}

TEST(reading, "members that the caller lacks have their defaults, and members that the library lacks have to be 0")
{
#define READS(type, initializer, function) \
    { #type, sizeof(ctrt_##type), &(const ctrt_##type)initializer, function }
    ctrt_loader_state state = CTRT_LOADER_STATE;
    CHECK_OK(ctrt_loader_get_state(&state, loader));
    const struct reads all[] = {
        READS(autocast_options, CTRT_AUTOCAST_OPTIONS, autocast),
        READS(grad_scaler_options, CTRT_GRAD_SCALER_OPTIONS, scaler_new),
        READS(grad_scaler_state, CTRT_GRAD_SCALER_STATE, scaler_set),
        READS(comm_options, CTRT_COMM_OPTIONS, comm_new_local),
        READS(loader_options, CTRT_LOADER_OPTIONS, loader_new),
        { "loader_state", sizeof state, &state, loader_restore },
        { "training_state", sizeof run, &run, training_save },
        READS(image_options, CTRT_IMAGE_OPTIONS, read_image),
        READS(csv_options, CTRT_CSV_OPTIONS, csv_new),
        READS(tokens_options, CTRT_TOKENS_OPTIONS, tokens_new),
        READS(pick_options, CTRT_PICK_OPTIONS, pick),
        READS(batch_norm_options, CTRT_BATCH_NORM_OPTIONS, batch_norm_new),
        READS(layer_norm_options, CTRT_LAYER_NORM_OPTIONS, layer_norm_new),
        READS(embedding_options, CTRT_EMBEDDING_OPTIONS, embedding_new),
        READS(multihead_attention_options, CTRT_MULTIHEAD_ATTENTION_OPTIONS, multihead_attention_new),
        READS(conv2d_options, CTRT_CONV2D_OPTIONS, conv2d),
        READS(conv2d_options, CTRT_CONV2D_OPTIONS, conv2d_new),
        READS(pool2d_options, CTRT_POOL2D_OPTIONS, max_pool2d),
        READS(pool2d_options, CTRT_POOL2D_OPTIONS, max_pool2d_new),
        READS(cross_entropy_options, CTRT_CROSS_ENTROPY_OPTIONS, cross_entropy),
        READS(attention_options, CTRT_ATTENTION_OPTIONS, attention),
        READS(sgd_options, CTRT_SGD_OPTIONS, sgd_new),
        READS(adam_options, CTRT_ADAM_OPTIONS, adam_new),
        READS(adamw_options, CTRT_ADAMW_OPTIONS, adamw_new),
        READS(rmsprop_options, CTRT_RMSPROP_OPTIONS, rmsprop_new),
        READS(adagrad_options, CTRT_ADAGRAD_OPTIONS, adagrad_new),
        READS(nadam_options, CTRT_NADAM_OPTIONS, nadam_new),
        READS(scatter_options, CTRT_SCATTER_OPTIONS, chunks),
        READS(progress_options, CTRT_PROGRESS_OPTIONS, progress_new),
        READS(split_options, CTRT_SPLIT_OPTIONS, split_new),
        READS(random_crop_options, CTRT_RANDOM_CROP_OPTIONS, crop),
    };
    EACH(r, all) {
        union words given;
        char message[1024], what[64];
        memset(&given, 0, sizeof given);
        memcpy(&given, r->full, r->bytes);
        const ctrt_status status = r->call(&given);
        snprintf(message, sizeof message, "%s", status != CTRT_OK ? ctrt_error_message() : "success");
        given.size = r->bytes + 16;
        same_result(r, &given, "16 bytes of 0 more", status, message);
        given.bytes[r->bytes + 15] = 1;
        CHECK_FAILS(r->call(&given), CTRT_ERR_NOT_SUPPORTED, "has a member that ctrt");
        given.size = 0;
        CHECK_FAILS(r->call(&given), CTRT_ERR_INVALID_ARGUMENT, "is not initialized (its size is 0)");
        /* The members that a program gave here are those at the beginning; what follows the struct is not read. */
        const size_t least = strcmp(r->name, "loader_state") == 0 ? r->bytes : 2 * sizeof(size_t);
        for (size_t size = least; size <= r->bytes; size += sizeof(size_t)) {
            memset(&given, 0xaa, sizeof given);
            memcpy(&given, r->full, size);
            given.size = size;
            snprintf(what, sizeof what, "%zu of %zu bytes", size, r->bytes);
            same_result(r, &given, what, status, message);
        }
    }
}

TEST(training, "training_load writes the step only into a state that has this member")
{
    union words given;
    memcpy(&given, &run, sizeof run);
    CHECK_OK(ctrt_training_save(path, &run));
    for (int has = 0; has < 2; has++) {
        memset(&given, 0xaa, sizeof given);
        memcpy(&given, &run, sizeof run);
        given.run.step = 99;
        given.size = has ? sizeof run : offsetof(ctrt_training_state, step);
        CHECK_OK(ctrt_training_load(&given.run, path));
        CHECK_EQ(given.run.step, has ? 7 : 99);
        CHECK_TRUE(given.bytes[sizeof run] == 0xaa && given.run.module == module);
    }
}

static ctrt_status objects_make(void)
{
    CTRT_TRY(ctrt_linear_new(&module, 3, 4, true, cpu));
    CTRT_TRY(ctrt_ones(&image, CTRT_SHAPE(1, 2, 3, 3), CTRT_F32, cpu));
    CTRT_TRY(ctrt_ones(&filter, CTRT_SHAPE(4, 2, 1, 1), CTRT_F32, cpu));
    CTRT_TRY(ctrt_ones(&rows, CTRT_SHAPE(2, 3), CTRT_F32, cpu));
    CTRT_TRY(ctrt_zeros(&target, CTRT_SHAPE(2), CTRT_I64, cpu));
    CTRT_TRY(ctrt_save_tensors(path, (const char *const[]){ "x" }, &rows, 1));
    CTRT_TRY(ctrt_safetensors_dataset(&dataset, path, NULL, 0));
    CTRT_TRY(ctrt_loader_new(&loader, dataset, NULL));
    run = CTRT_WITH(ctrt_training_state, .module = module, .step = 7);
    return CTRT_OK;
}

static void objects_release(void)
{
    ctrt_loader_release(&loader);
    ctrt_dataset_release(&dataset);
    ctrt_tensor_release(&target);
    ctrt_tensor_release(&rows);
    ctrt_tensor_release(&filter);
    ctrt_tensor_release(&image);
    ctrt_module_release(&module);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    snprintf(path, sizeof path, "%s/file.safetensors", folder_new());
    REQUIRE(objects_make() == CTRT_OK, "%s", ctrt_error_message());
    const int status = run_tests();
    objects_release();
    return status;
}
