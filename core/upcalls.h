/* SPDX-License-Identifier: Apache-2.0 */
/* upcalls.h: functions of higher layers that lower layers call, with the reason. tests/layers.sh finds all other calls
 * upward, and entries without use. */
#ifndef CORE_UPCALLS_H
#define CORE_UPCALLS_H

#include "ctrt/device.h"
#include "ctrt/tensor.h"

enum op;
union op_attributes;
struct device_memory;
struct launch_ops;
struct scope_held;
struct storage;

/* ---- from device: a device opens at its first use, in whichever layer that is ---- */

/* lifecycle/open.c: returns the device of `spec`, opened at first use. */
ctrt_status device_open(ctrt_device **out, const ctrt_device_spec *spec);

/* ---- from memory: the report of a failed allocation lists the owners, which the layer above finds ---- */

/* memory_stats/oom_report.c: reports that an allocation of `bytes` failed after all retries. `why`: the reason; may be
 * the thread's error message. Stores the report, calls the program's callback and sets the thread's error message.
 * Returns CTRT_ERR_OUT_OF_MEMORY. The caller holds no locks. */
ctrt_status oom_fail(struct device_memory *memory, size_t bytes, const char *why);
/* Like oom_fail, for pinned host memory that was requested for the device. */
ctrt_status oom_fail_pinned(struct device_memory *memory, size_t bytes, const char *why);

/* ---- from memory: a storage that is created during a capture belongs to the capture. Not one of capture_ops, because
 *      another thread may end the capture, so the function may not dereference it ---- */

/* graph/capture.c: allocates the block of a new storage from the running capture of `queue`, to which the memory
 * belongs also after the capture has ended. Without such a capture, allocates from the device's memory. */
ctrt_status capture_storage_alloc(struct storage *storage, struct device_memory *memory, size_t bytes, void *queue);

/* ---- from tensor: a tensor owns its gradient and its history, which the autograd layer defines ---- */

/* autograd/autograd_meta.c: frees the gradient and history of a tensor that is being destroyed. */
void autograd_meta_free(ctrt_tensor *tensor);
/* autograd/autograd_meta.c: reports whether the base of a view requires grad now. */
bool grad_base_requires_grad(const ctrt_tensor *tensor);
/* autograd/autograd_meta.c: returns whether the tensor is a leaf that requires grad. Such tensors are parameters, and
 * no scope ends them. Also from ops: autocast keeps copies of parameters. */
bool grad_is_parameter(const ctrt_tensor *tensor);
/* autograd/cycle.c: finds the tensors that are referred to only by each other, through saved values and histories, and
 * sets `unused`. Returns how many; 0 when out of memory. */
size_t grad_find_cycles(struct scope_held *tensors, size_t count);
/* ops/launch.c: the value of device->launch without a dry run, which the placeholder device of ended tensors also
 * has. */
extern const struct launch_ops launch_direct;

/* ---- from ops: each op has to be recorded, and runs too often for a pointer to a function ---- */

/* autograd/op_node.c: creates a graph node with edges to the inputs (NULL is allowed) and makes it the history of
 * results[0]. */
ctrt_status autograd_record(enum op op, ctrt_tensor **results, int n_results, ctrt_tensor *const *inputs, int n_inputs,
                            const union op_attributes *attributes);
/* autograd/inplace.c: must be called before an op writes self, which is inputs[0]. Returns CTRT_ERR_AUTOGRAD if
 * autograd cannot record the change, for instance of a leaf that requires grad. Saves the inputs that the rule uses,
 * and a clone of self if the rule uses input 0. After the write, *token must be passed to autograd_inplace_end with
 * the kernel's status. */
struct inplace_token { void *node; };
ctrt_status autograd_inplace_begin(struct inplace_token *token, enum op op, ctrt_tensor *self,
                                   ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes);
/* Increments the version of self's storage and, if `status` is CTRT_OK, makes the new node self's history. */
ctrt_status autograd_inplace_end(struct inplace_token *token, ctrt_tensor *self, ctrt_status status);
/* autograd/inplace.c: records a view op and stores the base in the view, for later writes through views. Must be called
 * for every view op, outside grad mode too. */
ctrt_status autograd_view(enum op op, ctrt_tensor *result, ctrt_tensor *base, const union op_attributes *attributes);
/* Marks a view that an op returned together with other views: autograd rejects changes of it in place (VIEW_CHUNK). */
void autograd_view_of_several(ctrt_tensor *view);
/* autograd/op_node.c: returns the history of a tensor with a reference; NULL: it has none. */
void *autograd_history(ctrt_tensor *tensor);
/* Returns the number of terms if the tensor is the result of ctrt_sum, else 0. */
int64_t autograd_sum_terms(ctrt_tensor *tensor);
/* autograd/autograd_meta.c: a tensor is printed with the name of its history's op. */
CTRT_API const char *ctrt_tensor_grad_fn(const ctrt_tensor *tensor);

#endif
