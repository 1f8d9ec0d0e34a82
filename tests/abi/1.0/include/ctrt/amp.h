/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_AMP_H
#define CTRT_AMP_H
#include "ctrt/optim.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_autocast_options {
    size_t size;
    ctrt_dtype dtype;
    bool disabled;
    bool no_cache;
} ctrt_autocast_options;
#define CTRT_AUTOCAST_OPTIONS CTRT_SIZED_(ctrt_autocast_options)
CTRT_API ctrt_status ctrt_autocast_push(const char *device_type, const ctrt_autocast_options *options);
CTRT_API ctrt_status ctrt_autocast_pop(void);
CTRT_BLOCK_LEAVE_(ctrt_autocast_leave_, ctrt_autocast_pop())
#define ctrt_autocast(...) CTRT_BLOCK_TRY_(ctrt_autocast_leave_, ctrt_autocast_push(__VA_ARGS__))
CTRT_API bool ctrt_autocast_enabled(const char *device_type);
CTRT_API ctrt_dtype ctrt_autocast_dtype(const char *device_type);
CTRT_API void ctrt_autocast_clear_cache(void);
typedef struct ctrt_autocast_settings ctrt_autocast_settings;
CTRT_API const ctrt_autocast_settings *ctrt_autocast_state(void);
CTRT_API ctrt_status ctrt_autocast_push_state(const ctrt_autocast_settings *settings);
typedef struct ctrt_grad_scaler ctrt_grad_scaler;
typedef struct ctrt_grad_scaler_options {
    size_t initialized;
    double init_scale;
    double growth_factor;
    double backoff_factor;
    int64_t growth_interval;
    bool disabled;
    bool allow_no_gradients;
    double min_scale;
    int64_t max_skips;
} ctrt_grad_scaler_options;
#define CTRT_GRAD_SCALER_OPTIONS \
    { sizeof(ctrt_grad_scaler_options), 65536, 2, 0.5, 2000, false, false, 0, 0 }
CTRT_API ctrt_status ctrt_grad_scaler_new(ctrt_grad_scaler **out, const ctrt_grad_scaler_options *options);
CTRT_API void ctrt_grad_scaler_release(ctrt_grad_scaler **scaler);
CTRT_API bool ctrt_grad_scaler_enabled(const ctrt_grad_scaler *scaler);
CTRT_API ctrt_status ctrt_grad_scaler_scale(ctrt_tensor **out, ctrt_grad_scaler *scaler, ctrt_tensor *loss);
CTRT_API ctrt_status ctrt_grad_scaler_unscale_(ctrt_grad_scaler *scaler, ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_grad_scaler_step(ctrt_grad_scaler *scaler, ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_grad_scaler_update(ctrt_grad_scaler *scaler, double new_scale);
CTRT_API ctrt_status ctrt_grad_scaler_check(ctrt_grad_scaler *scaler);
CTRT_API ctrt_status ctrt_grad_scaler_report(char *text, size_t bytes, ctrt_optimizer *optimizer);
typedef struct ctrt_grad_scaler_state {
    size_t size;
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker;
} ctrt_grad_scaler_state;
#define CTRT_GRAD_SCALER_STATE CTRT_SIZED_(ctrt_grad_scaler_state)
CTRT_API ctrt_status ctrt_grad_scaler_get_state(ctrt_grad_scaler_state *out, ctrt_grad_scaler *scaler);
CTRT_API ctrt_status ctrt_grad_scaler_set_state(ctrt_grad_scaler *scaler, const ctrt_grad_scaler_state *state);
CTRT_API ctrt_status ctrt_grad_scaler_save(ctrt_grad_scaler *scaler, const char *path);
CTRT_API ctrt_status ctrt_grad_scaler_load(ctrt_grad_scaler *scaler, const char *path);
CTRT_API ctrt_status ctrt_grad_scaler_skips(int64_t *all, int64_t *in_a_row, ctrt_grad_scaler *scaler);
typedef struct ctrt_inf_watch ctrt_inf_watch;
CTRT_API ctrt_status ctrt_inf_watch_new(ctrt_inf_watch **out, ctrt_module *module);
CTRT_API void ctrt_inf_watch_release(ctrt_inf_watch **watch);
CTRT_API ctrt_status ctrt_inf_watch_report(char *text, size_t bytes, ctrt_inf_watch *watch);
CTRT_END_DECLS
#endif
