/* SPDX-License-Identifier: Apache-2.0 */
/* A small user program, which tests/installed.sh builds against the installed tree with pkg-config.
 * Argument: the folder from which every plugin must be loaded. With INTERNAL_NAMES, for libctrt.a, the program has
 * functions with names of internal ones, and plugins that are not in use may be elsewhere. */
#include <stdio.h>
#include <string.h>

#include <ctrt/ctrt.h>

#ifdef INTERNAL_NAMES
int host_alloc = 1, device_get = 2, registry_use = 3;
enum { ALL_PLUGINS = 0 };
#else
enum { ALL_PLUGINS = 1 };
#endif

static ctrt_status square_and_derive(double *value, double *slope)
{
    const float three = 3.0f;
    ctrt_device *cpu = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(ctrt_from_data(&x, &three, 1, CTRT_SHAPE(1), CTRT_F32, cpu));
    CTRT_TRY(ctrt_tensor_require_grad(x, true));
    CTRT_TRY(ctrt_mul(&y, x, x));
    CTRT_TRY(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_backward(y));
    CTRT_TRY(ctrt_item(value, y));
    return ctrt_item(slope, ctrt_tensor_grad(x));
}

int main(int argc, char **argv)
{
    double value = 0, slope = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: installed PLUGIN-FOLDER\n");
        return 2;
    }
    if (square_and_derive(&value, &slope)) {
        fprintf(stderr, "%s\n", ctrt_error_message());
        return 1;
    }
    if (value != 9.0 || slope != 6.0) {
        fprintf(stderr, "3 squared is %g (want 9) with slope %g (want 6)\n", value, slope);
        return 1;
    }

    int ready = 0;
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++) {
        if (!ALL_PLUGINS && strcmp(info.state, "loaded") != 0)
            continue;
        if (strncmp(info.file, argv[1], strlen(argv[1])) != 0) {
            fprintf(stderr, "plugin %s is not from %s\n", info.file, argv[1]);
            return 1;
        }
        ready++;
    }
    printf("ctrt %s, %d components from %s\n", ctrt_version(), ready, argv[1]);
    return ready == 0;
}
