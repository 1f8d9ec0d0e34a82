// SPDX-License-Identifier: Apache-2.0
// ctrt.hpp: ctrt for C++17. Handles release their reference at the end of their scope, a copy of a handle is another
// reference to the same object, and errors are exceptions of the class ctrt::error.
//
//     namespace nn = ctrt::nn;
//     ctrt::module net = nn::sequential(nn::linear(64, 32), nn::relu(), nn::linear(32, 10));
//     ctrt::optimizer adam = ctrt::adam(net);
//     ctrt::tensor loss = ctrt::cross_entropy(net(x), labels);
//     loss.backward();
//     adam.step();
//
// Functions have the names, operands and errors of the C functions without ctrt_ (ctrt/ops.h and the other headers).
// `get()` and `put()` of a handle are for calls of C functions that are not here:
// check(ctrt_index_select(y.put(), x.get(), 0, rows.get())).
#ifndef CTRT_CTRT_HPP
#define CTRT_CTRT_HPP

#include <cmath>
#include <cstdlib>
#include <functional>
#include <exception>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ctrt/ctrt.h"

namespace ctrt {

// ---- errors ----

class error : public std::runtime_error {
public:
    error(ctrt_status status, const char *message) : std::runtime_error(message), status_(status) {}
    ctrt_status status() const noexcept { return status_; }

private:
    ctrt_status status_;
};

namespace detail {

// Exceptions of callbacks, by the number in the library's error message, which can reach another thread.
struct exceptions {
    std::mutex mutex;
    std::map<unsigned long, std::exception_ptr> kept;
    unsigned long count = 0;
};
inline exceptions thrown;

inline ctrt_status keep_exception(const char *text)
{
    std::lock_guard<std::mutex> lock(thrown.mutex);
    thrown.kept.erase(++thrown.count - 64);                 // of a call whose error nobody looked at
    thrown.kept[thrown.count] = std::current_exception();
    return ctrt_fail(CTRT_ERR_STATE, "%s [c++ exception %lu]", text, thrown.count);
}

// Runs the code of a callback: an exception becomes a status, which `check` turns into the same exception again.
template <class code> ctrt_status guarded(code &&run) noexcept
{
    try {
        run();
        return CTRT_OK;
    } catch (const error &e) {
        return ctrt_fail(e.status(), "%s", e.what());
    } catch (const std::exception &e) {
        return keep_exception(e.what());
    } catch (...) {
        return keep_exception("not a std::exception");
    }
}

} // namespace detail

// Throws the error of a call, or the exception of a callback that made the call fail.
inline void check(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    const std::string message = ctrt_error_message();
    const size_t at = message.find("[c++ exception ");
    std::map<unsigned long, std::exception_ptr>::node_type found;
    if (at != std::string::npos) {
        std::lock_guard<std::mutex> lock(detail::thrown.mutex);
        found = detail::thrown.kept.extract(std::strtoul(message.c_str() + at + 15, nullptr, 10));
    }
    if (found)
        std::rethrow_exception(found.mapped());
    throw error(status, message.c_str());
}

// ---- handles ----

// Owns one reference. Can be moved; `shared` can also be copied.
template <class type, void (*release)(type **)> class unique {
public:
    unique() noexcept = default;
    explicit unique(type *owned) noexcept : pointer_(owned) {}
    unique(unique &&other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
    unique &operator=(unique &&other) noexcept
    {
        unique moved(std::move(other));         // releases what this had
        std::swap(pointer_, moved.pointer_);
        return *this;
    }
    ~unique() { release(&pointer_); }

    type *get() const noexcept { return pointer_; }
    type **put() noexcept { return &pointer_; }                         // for out-parameters of C functions
    type *detach() noexcept { return std::exchange(pointer_, nullptr); }
    explicit operator bool() const noexcept { return pointer_ != nullptr; }

private:
    type *pointer_ = nullptr;
};

template <class type, void (*release)(type **), type *(*retain)(type *)> class shared : public unique<type, release> {
public:
    using unique<type, release>::unique;
    using native = type;
    static native *retained(native *borrowed) { return retain(borrowed); }
    shared() noexcept = default;
    shared(const shared &other) noexcept : unique<type, release>(retain(other.get())) {}
    shared(shared &&) noexcept = default;
    shared &operator=(const shared &other) noexcept { return *this = shared(other); }
    shared &operator=(shared &&) noexcept = default;
};

// A handle of class `type` with another reference to a borrowed object.
template <class type> type share(const typename type::native *borrowed)
{
    return type(type::retained(const_cast<typename type::native *>(borrowed)));
}

// What a C function writes to its first parameter, a number or a borrowed pointer.
template <class type, class function, class... arguments> type result_of(function f, arguments... more)
{
    type found{};
    check(f(&found, more...));
    return found;
}

// ---- arguments ----

struct scalar {
    template <class number, class = std::enable_if_t<std::is_arithmetic_v<number>>> scalar(number n)
    {
        if constexpr (std::is_same_v<number, bool>)
            value = ctrt_bool(n);
        else if constexpr (std::is_integral_v<number>)
            value = ctrt_int(static_cast<int64_t>(n));
        else
            value = ctrt_float(static_cast<double>(n));
    }
    ctrt_scalar value;
};

// Sizes or dimensions: {2, 3}. `all_dims` for reductions.
struct ints {
    ints(std::initializer_list<int64_t> list) : values(list) {}
    ints(std::vector<int64_t> list) : values(std::move(list)) {}
    ints(int64_t one) : values{ one } {}
    static ints all()
    {
        ints result(std::vector<int64_t>{});
        result.is_all = true;
        return result;
    }
    std::vector<int64_t> values;
    bool is_all = false;
};
inline const ints all_dims = ints::all();

// "cuda:1"; without a name the default device.
struct device {
    device() noexcept = default;
    device(ctrt_device *found) noexcept : pointer(found) {}
    device(const char *name) : pointer(result_of<ctrt_device *>(ctrt_device_get, name)) {}
    device(const std::string &name) : device(name.c_str()) {}
    std::string name() const { return ctrt_device_name(pointer); }
    bool operator==(const device &other) const noexcept { return pointer == other.pointer; }
    ctrt_device *pointer = nullptr;
};

constexpr ctrt_dtype default_type = CTRT_DTYPE_DEFAULT;
constexpr ctrt_dtype f32 = CTRT_F32, f64 = CTRT_F64, f16 = CTRT_F16, bf16 = CTRT_BF16, i8 = CTRT_I8, u8 = CTRT_U8,
                     i16 = CTRT_I16, i32 = CTRT_I32, i64 = CTRT_I64, boolean = CTRT_BOOL;

template <class number> constexpr ctrt_dtype dtype_of()
{
    if constexpr (std::is_same_v<number, bool>)
        return CTRT_BOOL;
    else if constexpr (std::is_floating_point_v<number>)
        return sizeof(number) == 4 ? CTRT_F32 : CTRT_F64;
    else
        return sizeof(number) == 1 ? (std::is_signed_v<number> ? CTRT_I8 : CTRT_U8)
                                   : sizeof(number) == 2 ? CTRT_I16 : sizeof(number) == 4 ? CTRT_I32 : CTRT_I64;
}

// ---- tensors ----

class tensor : public shared<ctrt_tensor, ctrt_tensor_release, ctrt_tensor_retain> {
public:
    using shared::shared;

    int ndim() const { return ctrt_tensor_ndim(get()); }
    std::vector<int64_t> shape() const
    {
        const int64_t *sizes = ctrt_tensor_shape(get());
        return std::vector<int64_t>(sizes, sizes + ndim());
    }
    int64_t size(int dim) const { return ctrt_tensor_size(get(), dim); }
    int64_t numel() const { return ctrt_tensor_numel(get()); }
    ctrt_dtype dtype() const { return ctrt_tensor_dtype(get()); }
    ctrt::device device() const { return ctrt_tensor_device(get()); }
    template <class number = void> number *data() const { return static_cast<number *>(ctrt_tensor_data(get())); }

    // The value of a tensor of one element.
    double item() const { return result_of<double>(ctrt_item, get()); }
    // The elements in row-major order, converted to `number`.
    template <class number> std::vector<number> values() const
    {
        static_assert(!std::is_same_v<number, bool>, "std::vector<bool> has no array; use values<uint8_t>()");
        std::vector<number> result(static_cast<size_t>(numel()));
        check(ctrt_to_host(result.data(), result.size() * sizeof(number), get(), dtype_of<number>()));
        return result;
    }
    std::string text() const
    {
        const std::unique_ptr<char, void (*)(void *)> freed(result_of<char *>(ctrt_tensor_format, get()), std::free);
        return freed.get();
    }

    bool requires_grad() const { return ctrt_tensor_requires_grad(get()); }
    void require_grad(bool require = true) const { check(ctrt_tensor_require_grad(get(), require)); }
    tensor grad() const { return share<tensor>(ctrt_tensor_grad(get())); }      // empty if there is none
    void set_grad(const tensor &grad) { check(ctrt_tensor_set_grad(get(), grad.get())); }
    void backward(bool retain_graph = false) const { check(ctrt_backward_with(get(), nullptr, retain_graph, false)); }
};

inline std::ostream &operator<<(std::ostream &out, const tensor &x) { return out << x.text(); }

namespace detail {

inline ctrt_tensor *raw(const tensor &x) { return x.get(); }
inline ctrt_ints raw(const ints &list)
{
    return ctrt_ints_of(list.values.data(), list.is_all ? -1 : static_cast<int>(list.values.size()));
}
inline ctrt_scalar raw(const scalar &s) { return s.value; }
inline ctrt_device *raw(const device &d) { return d.pointer; }
template <class type> const type &raw(const type &value) { return value; }       // numbers, pointers, structs of C

// Calls a C function whose first parameter is the result.
template <class result = tensor, class function, class... arguments> result call(function f, const arguments &...more)
{
    result out;
    check(f(out.put(), raw(more)...));
    return out;
}

inline std::vector<ctrt_tensor *> pointers(const std::vector<tensor> &tensors)
{
    std::vector<ctrt_tensor *> found;
    for (const tensor &x : tensors)
        found.push_back(x.get());
    return found;
}

} // namespace detail

// ---- elementwise ops, from ctrt/ops.def ----

#define CTRT_CXX_UNARY_no(name) \
    inline tensor name(const tensor &x) { return detail::call(ctrt_##name, x); }
#define CTRT_CXX_UNARY_yes(name) \
    CTRT_CXX_UNARY_no(name)      \
    inline void name##_(const tensor &self) { check(ctrt_##name##_(self.get())); }
#define CTRT_CXX_BINARY_no(name)                                                                       \
    inline tensor name(const tensor &a, const tensor &b) { return detail::call(ctrt_##name, a, b); }   \
    inline tensor name(const tensor &a, scalar b) { return detail::call(ctrt_##name##_scalar, a, b); }
#define CTRT_CXX_BINARY_yes(name)                                                                                     \
    CTRT_CXX_BINARY_no(name)                                                                                          \
    inline void name##_(const tensor &self, const tensor &other) { check(ctrt_##name##_(self.get(), other.get())); }  \
    inline void name##_(const tensor &self, scalar other) { check(ctrt_##name##_scalar_(self.get(), other.value)); }
#define CTRT_CXX_OWN_no(name)
#define CTRT_CXX_GRAPH_no(name)
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    CTRT_CXX_##form##_##in_place(name)
#include "ctrt/ops.def"
#undef CTRT_OP
#undef CTRT_CXX_UNARY_no
#undef CTRT_CXX_UNARY_yes
#undef CTRT_CXX_BINARY_no
#undef CTRT_CXX_BINARY_yes
#undef CTRT_CXX_OWN_no
#undef CTRT_CXX_GRAPH_no

#define CTRT_CXX_OPERATOR(sign, name, reversed)                                       \
    inline tensor operator sign(const tensor &a, const tensor &b) { return name(a, b); } \
    inline tensor operator sign(const tensor &a, scalar b) { return name(a, b); }        \
    inline tensor operator sign(scalar a, const tensor &b) { return reversed; }
CTRT_CXX_OPERATOR(+, add, add(b, a))
CTRT_CXX_OPERATOR(-, sub, detail::call(ctrt_rsub_scalar, b, a))
CTRT_CXX_OPERATOR(*, mul, mul(b, a))
CTRT_CXX_OPERATOR(/, div, detail::call(ctrt_rdiv_scalar, b, a))
CTRT_CXX_OPERATOR(==, eq, eq(b, a))
CTRT_CXX_OPERATOR(!=, ne, ne(b, a))
CTRT_CXX_OPERATOR(<, lt, gt(b, a))
CTRT_CXX_OPERATOR(<=, le, ge(b, a))
CTRT_CXX_OPERATOR(>, gt, lt(b, a))
CTRT_CXX_OPERATOR(>=, ge, le(b, a))
#undef CTRT_CXX_OPERATOR
inline tensor operator-(const tensor &x) { return neg(x); }

// ---- other functions of tensors: CTRT_CXX(function, (parameters), arguments of the C function...) ----

#define CTRT_CXX(name, parameters, ...) \
    inline tensor name parameters { return detail::call(ctrt_##name, __VA_ARGS__); }
#define CTRT_CXX_NEW(name) \
    CTRT_CXX(name, (const ints &shape, ctrt_dtype type = default_type, device on = {}), shape, type, on)
CTRT_CXX_NEW(empty)
CTRT_CXX_NEW(zeros)
CTRT_CXX_NEW(ones)
CTRT_CXX_NEW(rand)
CTRT_CXX_NEW(randn)
#undef CTRT_CXX_NEW
CTRT_CXX(full, (const ints &shape, scalar value, ctrt_dtype type = default_type, device on = {}), shape, value, type,
         on)
CTRT_CXX(arange, (scalar start, scalar end, scalar step = 1, ctrt_dtype type = default_type, device on = {}), start,
         end, step, type, on)
CTRT_CXX(randperm, (int64_t n, device on = {}), n, on)
CTRT_CXX(zeros_like, (const tensor &like), like, default_type, device())
CTRT_CXX(ones_like, (const tensor &like), like, default_type, device())
CTRT_CXX(to_device, (const tensor &x, device on), x, on)
CTRT_CXX(to_dtype, (const tensor &x, ctrt_dtype type), x, type)
CTRT_CXX(contiguous, (const tensor &x, ctrt_memory_format format = CTRT_CONTIGUOUS_FORMAT), x, format)
CTRT_CXX(clone, (const tensor &x), x)
CTRT_CXX(detach, (const tensor &x), x)
CTRT_CXX(gelu, (const tensor &x, bool tanh_approximation = false), x, tanh_approximation)
CTRT_CXX(clamp, (const tensor &x, scalar low, scalar high), x, low, high)
CTRT_CXX(where, (const tensor &condition, const tensor &a, const tensor &b), condition, a, b)
CTRT_CXX(masked_fill, (const tensor &x, const tensor &mask, scalar value), x, mask, value)
CTRT_CXX(reshape, (const tensor &x, const ints &shape), x, shape)
CTRT_CXX(flatten, (const tensor &x, int first_dim = 0, int last_dim = -1), x, first_dim, last_dim)
CTRT_CXX(permute, (const tensor &x, const ints &dims), x, dims)
CTRT_CXX(transpose, (const tensor &x, int dim0, int dim1), x, dim0, dim1)
CTRT_CXX(squeeze, (const tensor &x, const ints &dims = all_dims), x, dims)
CTRT_CXX(unsqueeze, (const tensor &x, int dim), x, dim)
CTRT_CXX(expand, (const tensor &x, const ints &shape), x, shape)
CTRT_CXX(select, (const tensor &x, int dim, int64_t index), x, dim, index)
CTRT_CXX(slice, (const tensor &x, int dim, int64_t start, int64_t end, int64_t step = 1), x, dim, start, end, step)
CTRT_CXX(narrow, (const tensor &x, int dim, int64_t start, int64_t length), x, dim, start, length)
CTRT_CXX(index_select, (const tensor &x, int dim, const tensor &index), x, dim, index)
CTRT_CXX(gather, (const tensor &x, int dim, const tensor &index), x, dim, index)
CTRT_CXX(embedding, (const tensor &weight, const tensor &indices, int64_t padding_idx = -1), weight, indices,
         padding_idx)
CTRT_CXX(tril, (const tensor &x, int64_t diagonal = 0), x, diagonal)
CTRT_CXX(triu, (const tensor &x, int64_t diagonal = 0), x, diagonal)
#define CTRT_CXX_REDUCE(name, function)                                                     \
    inline tensor name(const tensor &x, const ints &dims = all_dims, bool keepdim = false)   \
    {                                                                                        \
        return detail::call(function, x, dims, keepdim);                                     \
    }
CTRT_CXX_REDUCE(sum, ctrt_sum_dims)
CTRT_CXX_REDUCE(mean, ctrt_mean_dims)
CTRT_CXX_REDUCE(prod, ctrt_prod_dims)
CTRT_CXX_REDUCE(amax, ctrt_amax)
CTRT_CXX_REDUCE(amin, ctrt_amin)
CTRT_CXX_REDUCE(any, ctrt_any)
CTRT_CXX_REDUCE(all, ctrt_all)
CTRT_CXX_REDUCE(argmax, ctrt_argmax)
CTRT_CXX_REDUCE(argmin, ctrt_argmin)
#undef CTRT_CXX_REDUCE
CTRT_CXX(var, (const tensor &x, const ints &dims = all_dims, int correction = 1, bool keepdim = false), x, dims,
         correction, keepdim)
CTRT_CXX(matmul, (const tensor &a, const tensor &b), a, b)
CTRT_CXX(linear, (const tensor &x, const tensor &weight, const tensor &bias = {}), x, weight, bias)
CTRT_CXX(conv2d, (const tensor &x, const tensor &weight, const tensor &bias = {},
                  const ctrt_conv2d_options *options = nullptr), x, weight, bias, options)
CTRT_CXX(softmax, (const tensor &x, int dim), x, dim)
CTRT_CXX(log_softmax, (const tensor &x, int dim), x, dim)
CTRT_CXX(cross_entropy, (const tensor &logits, const tensor &target,
                         const ctrt_cross_entropy_options *options = nullptr), logits, target, options)
CTRT_CXX(mse_loss, (const tensor &x, const tensor &target, ctrt_reduction reduction = CTRT_REDUCE_MEAN), x, target,
         reduction)
CTRT_CXX(layer_norm, (const tensor &x, const ints &shape, const tensor &weight = {}, const tensor &bias = {},
                      double epsilon = 1e-5), x, shape, weight, bias, epsilon)
CTRT_CXX(scaled_dot_product_attention, (const tensor &q, const tensor &k, const tensor &v, const tensor &mask = {},
                                        const ctrt_attention_options *options = nullptr), q, k, v, mask, options)
CTRT_CXX(dropout, (const tensor &x, double p, bool training = true), x, p, training)
#undef CTRT_CXX

// A tensor with a copy of the values; without a shape it has one dimension.
template <class number> tensor from(const std::vector<number> &values, const ints &shape = all_dims, device on = {})
{
    const auto count = static_cast<int64_t>(values.size());
    return detail::call(ctrt_from_data, values.data(), count, shape.is_all ? ints(count) : shape, dtype_of<number>(),
                        on);
}
inline tensor cat(const std::vector<tensor> &tensors, int dim = 0)
{
    return detail::call(ctrt_cat, detail::pointers(tensors).data(), static_cast<int>(tensors.size()), dim);
}
inline tensor stack(const std::vector<tensor> &tensors, int dim = 0)
{
    return detail::call(ctrt_stack, detail::pointers(tensors).data(), static_cast<int>(tensors.size()), dim);
}
inline void copy_(const tensor &self, const tensor &source) { check(ctrt_copy_(self.get(), source.get())); }
inline void fill_(const tensor &self, scalar value) { check(ctrt_fill_(self.get(), value.value)); }
inline void manual_seed(uint64_t seed) { ctrt_manual_seed(seed); }

// ---- guards, which end with their scope ----

class no_grad {
public:
    no_grad() : was_(ctrt_set_grad_enabled(false)) {}
    ~no_grad() { ctrt_set_grad_enabled(was_); }
    no_grad(const no_grad &) = delete;
    no_grad &operator=(const no_grad &) = delete;

private:
    bool was_;
};

#define CTRT_CXX_GUARD(name, parameters, begin, end)  \
    class name {                                      \
    public:                                           \
        explicit name parameters { check(begin); }    \
        ~name() { end; }                              \
        name(const name &) = delete;                  \
        name &operator=(const name &) = delete;       \
    };
CTRT_CXX_GUARD(autocast, (const char *device_type, const ctrt_autocast_options *options = nullptr),
               ctrt_autocast_push(device_type, options), ctrt_autocast_pop())
CTRT_CXX_GUARD(on_device, (device d), ctrt_device_push(d.pointer), ctrt_device_pop())
CTRT_CXX_GUARD(labeled, (const char *label), ctrt_memory_label_push(label), ctrt_memory_label_pop())

using stream = shared<ctrt_stream, ctrt_stream_release, ctrt_stream_retain>;
using event = shared<ctrt_event, ctrt_event_release, ctrt_event_retain>;
CTRT_CXX_GUARD(on_stream, (const stream &s), ctrt_stream_push(s.get()), ctrt_stream_pop())
#undef CTRT_CXX_GUARD
inline stream new_stream(device on = {}) { return detail::call<stream>(ctrt_stream_new, on, 0); }

// ---- modules ----

class module : public shared<ctrt_module, ctrt_module_release, ctrt_module_retain> {
public:
    using shared::shared;

    template <class... tensors> tensor operator()(const tensor &first, const tensors &...more) const
    {
        ctrt_tensor *inputs[] = { first.get(), more.get()... };
        return detail::call(ctrt_forward_n, get(), inputs, static_cast<int>(1 + sizeof...(more)));
    }
    std::string kind() const { return ctrt_module_kind(get()); }
    size_t parameter_count() const { return ctrt_module_parameter_count(get()); }
    // The parameters by their dotted names.
    std::vector<std::pair<std::string, tensor>> parameters() const
    {
        std::vector<std::pair<std::string, tensor>> found;
        const char *name = nullptr;
        ctrt_tensor *borrowed = nullptr;
        for (size_t i = 0; i < parameter_count(); i++) {
            check(ctrt_module_parameter(&name, &borrowed, get(), i));
            found.emplace_back(name, share<tensor>(borrowed));
        }
        return found;
    }
    tensor operator[](const char *name) const           // a parameter or buffer: net["0.weight"]
    {
        return share<tensor>(result_of<ctrt_tensor *>(ctrt_module_tensor, get(), name));
    }
    void train(bool on = true) const { ctrt_module_train(get(), on); }
    void eval() const { train(false); }
    void to(device on, ctrt_dtype type = default_type) const { check(ctrt_module_to(get(), on.pointer, type)); }
    void zero_grad() const { check(ctrt_module_zero_grad(get(), true)); }
    module copy(device on = {}) const { return detail::call<module>(ctrt_module_copy, get(), on); }
    void save(const std::string &path) const { check(ctrt_save(get(), path.c_str())); }
    void load(const std::string &path) const { check(ctrt_load(get(), path.c_str())); }
};

namespace nn {

#define CTRT_CXX_LAYER(name, parameters, ...) \
    inline module name parameters { return detail::call<module>(ctrt_##name##_new, __VA_ARGS__); }
CTRT_CXX_LAYER(linear, (int64_t in, int64_t out, bool bias = true, device on = {}), in, out, bias, on)
CTRT_CXX_LAYER(conv2d, (int64_t in, int64_t out, int64_t height, int64_t width,
                        const ctrt_conv2d_options *options = nullptr, bool bias = true, device on = {}),
               in, out, height, width, options, bias, on)
CTRT_CXX_LAYER(batch_norm1d, (int64_t n, const ctrt_batch_norm_options *options = nullptr, device on = {}), n, options,
               on)
CTRT_CXX_LAYER(batch_norm2d, (int64_t n, const ctrt_batch_norm_options *options = nullptr, device on = {}), n, options,
               on)
CTRT_CXX_LAYER(layer_norm, (const ints &shape, const ctrt_layer_norm_options *options = nullptr, device on = {}), shape,
               options, on)
CTRT_CXX_LAYER(embedding, (int64_t count, int64_t dim, const ctrt_embedding_options *options = nullptr, device on = {}),
               count, dim, options, on)
CTRT_CXX_LAYER(multihead_attention, (int64_t embed, int64_t heads,
                                     const ctrt_multihead_attention_options *options = nullptr, device on = {}),
               embed, heads, options, on)
CTRT_CXX_LAYER(max_pool2d, (const ctrt_pool2d_options *options), options)
CTRT_CXX_LAYER(dropout, (double p), p)
CTRT_CXX_LAYER(gelu, (bool tanh_approximation = false), tanh_approximation)
CTRT_CXX_LAYER(softmax, (int dim), dim)
CTRT_CXX_LAYER(flatten, (int first_dim = 1, int last_dim = -1), first_dim, last_dim)
#undef CTRT_CXX_LAYER
inline module relu() { return detail::call<module>(ctrt_relu_new); }
inline module tanh() { return detail::call<module>(ctrt_tanh_new); }
inline module sigmoid() { return detail::call<module>(ctrt_sigmoid_new); }

template <class... modules> module sequential(const modules &...layers)
{
    module made = detail::call<module>(ctrt_sequential_new, CTRT_NO_MODULES);
    (check(ctrt_sequential_add(made.get(), ctrt_module_retain(layers.get()))), ...);
    return made;
}

} // namespace nn

// A module of the program: a class derived from `layer` with the function `forward`, of which make_module<net>(...)
// makes a module, which cannot be copied. Its constructor registers parameters and other modules by `add`.
class layer {
public:
    virtual ~layer() = default;
    virtual tensor forward(const std::vector<tensor> &inputs) = 0;

protected:
    module add(const char *name, module child)
    {
        children_.emplace_back(name, child);
        return child;
    }
    tensor add(const char *name, tensor parameter)
    {
        parameters_.emplace_back(name, parameter);
        return parameter;
    }

private:
    template <class type, class... arguments> friend module make_module(arguments &&...more);
    std::vector<std::pair<std::string, module>> children_;          // the module owns them after make_module
    std::vector<std::pair<std::string, tensor>> parameters_;
};

// The loss of a part of a batch from the output of a module and its inputs.
using loss_function = std::function<tensor(const tensor &, const std::vector<tensor> &)>;

namespace detail {

inline layer *&layer_of(ctrt_module *self) { return *static_cast<layer **>(ctrt_module_state(self)); }

inline std::vector<tensor> tensors_of(ctrt_tensor *const *borrowed, int count)
{
    std::vector<tensor> found;
    for (int i = 0; i < count; i++)
        found.push_back(share<tensor>(borrowed[i]));
    return found;
}
inline ctrt_status forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    return guarded([=] { ctrt_tensor_assign(y, layer_of(self)->forward(tensors_of(inputs, count)).get()); });
}
inline ctrt_status loss_of(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)
{
    const auto &function = *static_cast<const loss_function *>(user);
    return guarded([&] {
        ctrt_tensor_assign(loss, function(share<tensor>(output), tensors_of(inputs, count)).get());
    });
}

} // namespace detail

template <class type, class... arguments> module make_module(arguments &&...more)
{
    static const ctrt_module_class description = [] {
        ctrt_module_class found = {};
        found.size = sizeof found;
        found.kind = "layer";
        found.state_bytes = sizeof(layer *);
        found.forward = detail::forward;
        found.destroy = [](ctrt_module *self) { delete detail::layer_of(self); };
        return found;
    }();
    module made;
    check(ctrt_module_new(made.put(), &description));
    layer *made_layer = detail::layer_of(made.get()) = new type(std::forward<arguments>(more)...);
    for (auto &[name, child] : made_layer->children_)
        check(ctrt_module_add_module(made.get(), name.c_str(), ctrt_module_retain(child.get())));
    for (auto &[name, parameter] : made_layer->parameters_)
        check(ctrt_module_add_parameter(made.get(), name.c_str(), parameter.get()));
    return made;
}

// ---- optimizers ----

class optimizer : public unique<ctrt_optimizer, ctrt_optimizer_release> {
public:
    using unique::unique;
    void step() const { check(ctrt_optimizer_step(get())); }
    void zero_grad() const { check(ctrt_optimizer_zero_grad(get(), true)); }
    double lr() const { return ctrt_optimizer_lr(get()); }
    void set_lr(double lr) const { check(ctrt_optimizer_set_lr(get(), lr)); }
    void add(const std::vector<tensor> &parameters) const
    {
        check(ctrt_optimizer_add(get(), detail::pointers(parameters).data(), static_cast<int>(parameters.size())));
    }
    void save(const std::string &path) const { check(ctrt_optimizer_save(get(), path.c_str())); }
    void load(const std::string &path) const { check(ctrt_optimizer_load(get(), path.c_str())); }
};

#define CTRT_CXX_OPTIMIZER(name)                                                                          \
    inline optimizer name(const module &net = {}, const ctrt_##name##_options *options = nullptr)        \
    {                                                                                                    \
        return detail::call<optimizer>(ctrt_##name##_new, net.get(), options);                           \
    }
CTRT_CXX_OPTIMIZER(sgd)
CTRT_CXX_OPTIMIZER(adam)
CTRT_CXX_OPTIMIZER(adamw)
CTRT_CXX_OPTIMIZER(rmsprop)
CTRT_CXX_OPTIMIZER(adagrad)
CTRT_CXX_OPTIMIZER(nadam)
#undef CTRT_CXX_OPTIMIZER

// ---- several devices and processes ----

// A module that runs `net` by a strategy (ctrt/parallel.h); nullptr: the parameter CTRT_STRATEGY.
inline module parallel(const module &net, const char *strategy = nullptr, const std::vector<device> &devices = {})
{
    std::vector<ctrt_device *> pointers;
    for (const device &d : devices)
        pointers.push_back(d.pointer);
    return detail::call<module>(ctrt_parallel_new, net.get(), strategy, pointers.empty() ? nullptr : pointers.data(),
                                static_cast<int>(pointers.size()));
}
// Forward, loss and backward of a batch. The loss function is called for parts of it, in several threads.
inline tensor parallel_step(const module &net, const std::vector<tensor> &inputs, loss_function loss)
{
    return detail::call(ctrt_parallel_step, net.get(), detail::pointers(inputs).data(), static_cast<int>(inputs.size()),
                        detail::loss_of, static_cast<void *>(&loss));
}

// The gradients of `output` with respect to `inputs`; empty for an input that it does not depend on.
inline std::vector<tensor> grad(const tensor &output, const std::vector<tensor> &inputs, bool create_graph = false)
{
    std::vector<ctrt_tensor *> found(inputs.size(), nullptr);
    check(ctrt_grad(found.data(), output.get(), detail::pointers(inputs).data(), static_cast<int>(inputs.size()),
                    nullptr, create_graph, create_graph, true));
    return std::vector<tensor>(found.begin(), found.end());
}

} // namespace ctrt

#endif
