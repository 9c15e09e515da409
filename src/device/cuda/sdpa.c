// Attention: who computes a call, the kernels of the program or cuDNN, and cuDNN's plans for it.
#include "device/cuda/sdpa.h"
#include "base/rank.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct CudaSdpa {
    Cudnn cudnn;
    cudnnHandle_t handle;
    bool forced, any_order;
    SdpaPlan *plans;
};

// ---- who computes a call ----------------------------------------------------------------------------------

// On these generations, Hopper's and Blackwell's of the data centre, cuDNN is faster than the kernels of the program;
// on A100 and on GPUs for desktops it is slower, by published measurements.
static bool is_for_cudnn(int major) { return major == 9 || major == 10; }

static bool may_use_cudnn(const DeviceOptions *options) { return options->attention != ATTENTION_OWN; }

static bool is_plain(const AttentionShape *shape, const AttentionRules *rules, Tensor first_key,
                     Tensor sinks) {
    bool window = rules->window && rules->window < shape->sequence;
    return !window && rules->scale == 0 && rules->cap == 0 && !rules->off_by_one && !shape->keys &&
           !first_key.data && !sinks.data;
}

// What cuDNN takes by its documentation, and of a backward pass more than one position. Its dropout draws other masks.
static bool takes_shape(const AttentionShape *shape, Tensor qkv, Tensor probabilities,
                        const Dropout *dropout) {
    return qkv.dtype != F32 && shape->head_size % 8 == 0 && shape->head_size <= 128 && shape->sequence > 1 &&
           !probabilities.data && dropout->probability == 0;
}

static bool takes_forward(const AttentionForward *p) {
    return is_plain(&p->shape, &p->rules, p->first_key, p->sinks) &&
           takes_shape(&p->shape, p->qkv, p->probabilities, &p->dropout);
}

static bool takes_backward(const AttentionBackward *p) {
    return is_plain(&p->shape, &p->rules, p->first_key, p->sinks) &&
           takes_shape(&p->shape, p->qkv, p->probabilities, &p->dropout);
}

static SdpaKey key_of(const AttentionShape *shape, Tensor qkv, bool backward, bool any_order) {
    return (SdpaKey){.samples = shape->batch * shape->groups,
                     .heads = shape->heads / shape->groups,
                     .sequence = shape->sequence,
                     .size = shape->head_size,
                     .dtype = qkv.dtype,
                     .backward = backward,
                     .any_order = backward && any_order};
}

static bool is_same_key(const SdpaKey *a, const SdpaKey *b) {
    return a->samples == b->samples && a->heads == b->heads && a->sequence == b->sequence &&
           a->size == b->size && a->dtype == b->dtype && a->backward == b->backward &&
           a->any_order == b->any_order;
}

// ---- workspace --------------------------------------------------------------------------------------------

size_t cuda_attention_forward_workspace(const DeviceOptions *options, const AttentionForward *p) {
    const SdpaKey key = key_of(&p->shape, p->qkv, false, false);
    return may_use_cudnn(options) && takes_forward(p) ? sdpa_room(&key, false).all : 0;
}

static bool is_in_place(const AttentionBackward *p) { return p->dqkv.data == p->qkv.data; }

// A plan of memory knows no GPU: unless the options say who computes, there is room for either.
size_t cuda_attention_backward_workspace(const DeviceOptions *options, const AttentionBackward *p) {
    const SdpaKey key = key_of(&p->shape, p->qkv, true, options->any_order);
    const size_t own = cuda_own_attention_backward_workspace(p);
    const size_t cudnn =
        may_use_cudnn(options) && takes_backward(p) ? sdpa_room(&key, is_in_place(p)).all : 0;
    return own > cudnn ? own : cudnn;
}

// ---- plans ------------------------------------------------------------------------------------------------

// Whether a status says what a release of cuDNN does on a kind of GPU, and not what this machine lacks: then all ranks
// get the same.
static bool is_of_release(cudnnStatus_t status) {
    static const int of_machine[] = {CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
                                     CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART,
                                     CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                                     CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE};
    bool is = (int)status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
    for (size_t i = 0; i < sizeof of_machine / sizeof *of_machine; i++) is &= (int)status != of_machine[i];
    return is;
}

// A call of cuDNN that ends the job, or keeps a device from being prepared; status OK: none.
typedef struct {
    const char *call;
    Status status;
    char error[1024];
} Refusal;

// cuDNN takes no such graph.
static void refused(const CudaDevice *d, const SdpaPlan *plan, const char *what, Refusal *refusal) {
    const CudnnVersion version = cudnn_version(&d->sdpa->cudnn);
    const bool ends = d->sdpa->forced || !is_of_release(plan->graph.status);
    refusal->call = plan->graph.call;
    if (ends) refusal->status = ERR_UNAVAILABLE;
    snprintf(refusal->error, sizeof refusal->error, "%s, in cuDNN %s for %s%s", plan->graph.error.text,
             version.text, what, ends ? "; --attention-backend flash takes the kernels of the program" : "");
    if (!ends && rank_current()->rank == 0)
        fprintf(stderr, "trireme: warning: the kernels of the program compute what cuDNN does not: %s\n",
                refusal->error);
}

static void check_workspace(const CudaDevice *d, const SdpaKey *key, int64_t bytes, const char *what,
                            Refusal *refusal) {
    const size_t most = sdpa_room(key, false).engine_bytes;
    if ((size_t)bytes <= most) return;
    *refusal = (Refusal){.call = "cudnnBackendGetAttribute", .status = ERR_UNAVAILABLE};
    snprintf(
        refusal->error, sizeof refusal->error,
        "cuDNN %s wants %lld bytes of workspace for %s, and no more than %zu are set aside; "
        "--attention-backend flash takes the kernels of the program, and another release of cuDNN may want less",
        cudnn_version(&d->sdpa->cudnn).text, (long long)bytes, what, most);
}

static SdpaPlan *make_plan(CudaDevice *d, const SdpaKey *key, Refusal *refusal) {
    SdpaPlan *plan = calloc(1, sizeof *plan);
    CHECK(plan, "no memory for a plan of attention");
    char what[160];
    int64_t bytes = 0;
    *plan = (SdpaPlan){.key = *key, .graph = {.cudnn = &d->sdpa->cudnn}};
    sdpa_describe(key, what, sizeof what);
    sdpa_build(&plan->graph, key);
    plan->plan = cudnn_plan(&plan->graph, d->sdpa->handle, NULL, &bytes);
    if (plan->plan)
        check_workspace(d, key, bytes, what, refusal);
    else
        refused(d, plan, what, refusal);
    return plan;
}

// A refused plan is kept, too: it is destroyed with the device, which nobody uses then.
static const SdpaPlan *find_plan(CudaDevice *d, const SdpaKey *key, Refusal *refusal) {
    SdpaPlan *plan = d->sdpa->plans;
    refusal->status = OK;
    while (plan && !is_same_key(&plan->key, key)) plan = plan->next;
    if (plan) return plan;
    plan = make_plan(d, key, refusal);
    plan->next = d->sdpa->plans;
    return d->sdpa->plans = plan;
}

const SdpaPlan *sdpa_plan(CudaDevice *d, const SdpaKey *key) {
    Refusal refusal;
    const SdpaPlan *plan = find_plan(d, key, &refusal);
    if (refusal.status != OK) cuda_refused(d, refusal.call, refusal.error, refusal.status);
    return plan;
}

Status sdpa_prepare(CudaDevice *d, const SdpaKey *key) {
    Refusal refusal;
    find_plan(d, key, &refusal);
    return refusal.status == OK ? OK : cuda_fail(d, refusal.call, refusal.error, refusal.status);
}

// ---- launches ---------------------------------------------------------------------------------------------

// The addresses of a call. The numbers live until cudnn_execute has returned.
typedef struct {
    int64_t ids[SDPA_TENSORS];
    void *addresses[SDPA_TENSORS];
    int count;
    float scale, masked, one;
} SdpaCall;

static void bind(SdpaCall *call, SdpaTensor id, void *address) {
    call->ids[call->count] = id;
    call->addresses[call->count++] = address;
}

// A tensor with qkv's layout: its three parts.
static void bind_parts(SdpaCall *call, const SdpaKey *key, void *qkv, SdpaTensor queries, SdpaTensor keys,
                       SdpaTensor values) {
    char *first = qkv;
    const size_t head_bytes = (size_t)key->size * dtype_bytes(key->dtype);
    bind(call, queries, first);
    bind(call, keys, first + (size_t)key->heads * head_bytes);
    bind(call, values, first + (size_t)(key->heads + 1) * head_bytes);
}

static void bind_common(SdpaCall *call, const SdpaKey *key, Tensor qkv, Tensor out, Tensor stats) {
    call->scale = 1 / sqrtf((float)key->size);
    call->masked = -INFINITY;
    call->one = 1;
    bind_parts(call, key, qkv.data, SDPA_QUERIES, SDPA_KEYS, SDPA_VALUES);
    bind(call, SDPA_OUT, out.data);
    bind(call, SDPA_STATS, stats.data);
    bind(call, SDPA_SCALE, &call->scale);
    bind(call, SDPA_MASKED, &call->masked);
}

static void execute(const Exec *exec, const SdpaPlan *plan, const SdpaCall *call, void *workspace) {
    const CudaDevice *d = exec->state;
    const Cudnn *cudnn = &d->sdpa->cudnn;
    cudnnStatus_t status = cudnn->cudnnSetStream(d->sdpa->handle, stream_of(exec));
    if (status) cuda_fault(d, "cudnnSetStream", cudnn_error(cudnn, status).text, ERR_BUG);
    status =
        cudnn_execute(cudnn, d->sdpa->handle, plan->plan, call->ids, call->addresses, call->count, workspace);
    if (status) cuda_fault(d, "cudnnBackendExecute", cudnn_error(cudnn, status).text, ERR_BUG);
}

static bool are_aligned(const Tensor *tensors, int count) {
    for (int i = 0; i < count; i++)
        if ((uintptr_t)tensors[i].data % 16) return false;
    return true;
}

// Whether the call is cuDNN's; sets its key.
static bool is_cudnn_forward(const CudaDevice *d, const AttentionForward *p, SdpaKey *key) {
    *key = key_of(&p->shape, p->qkv, false, false);
    return d->sdpa && takes_forward(p) && are_aligned((const Tensor[]){p->qkv, p->out, p->stats}, 3);
}

static bool is_cudnn_backward(const CudaDevice *d, const AttentionBackward *p, SdpaKey *key) {
    const Tensor tensors[] = {p->dout, p->qkv, p->out, p->stats, p->dqkv};
    *key = key_of(&p->shape, p->qkv, true, d->sdpa && d->sdpa->any_order);
    return d->sdpa && takes_backward(p) && are_aligned(tensors, 5);
}

Status cuda_prepare_attention_forward(CudaDevice *d, const AttentionForward *p) {
    SdpaKey key;
    return is_cudnn_forward(d, p, &key) ? sdpa_prepare(d, &key) : OK;
}

Status cuda_prepare_attention_backward(CudaDevice *d, const AttentionBackward *p) {
    SdpaKey key;
    return is_cudnn_backward(d, p, &key) ? sdpa_prepare(d, &key) : OK;
}

void cuda_attention_forward(const Exec *exec, const AttentionForward *p) {
    CudaDevice *d = exec->state;
    SdpaKey key;
    const SdpaPlan *plan = is_cudnn_forward(d, p, &key) ? sdpa_plan(d, &key) : NULL;
    if (!plan || !plan->plan) {
        cuda_own_attention_forward(exec, p);
        return;
    }
    SdpaCall call = {.count = 0};
    bind_common(&call, &key, p->qkv, p->out, p->stats);
    execute(exec, plan, &call, (char *)exec->workspace + sdpa_room(&key, false).engine);
}

static void backward(const Exec *exec, const SdpaPlan *plan, const AttentionBackward *p) {
    const CudaDevice *d = exec->state;
    const SdpaKey *key = &plan->key;
    const bool in_place = is_in_place(p);
    const SdpaRoom room = sdpa_room(key, in_place);
    char *workspace = exec->workspace;
    void *dqkv = in_place ? workspace + room.dqkv : p->dqkv.data;
    SdpaCall call = {.count = 0};
    bind_common(&call, key, p->qkv, p->out, p->stats);
    bind(&call, SDPA_DOUT, p->dout.data);
    bind(&call, SDPA_ONE, &call.one);
    bind(&call, SDPA_SUMS, workspace + room.sums);
    bind_parts(&call, key, dqkv, SDPA_DQUERIES, SDPA_DKEYS, SDPA_DVALUES);
    if (key->heads > 1) {
        bind(&call, SDPA_HEADS_DKEYS, workspace + room.dkeys);
        bind(&call, SDPA_HEADS_DVALUES, workspace + room.dvalues);
    }
    if (key->any_order) {
        bind(&call, SDPA_ADDED_DQUERIES, workspace + room.dqueries);
        CUDA(d, cudaMemsetAsync(workspace + room.dqueries, 0, room.dqkv - room.dqueries, stream_of(exec)));
    }
    execute(exec, plan, &call, workspace + room.engine);
    if (in_place)
        CUDA(d, cudaMemcpyAsync(p->dqkv.data, dqkv, tensor_bytes(p->dqkv), cudaMemcpyDeviceToDevice,
                                stream_of(exec)));
}

void cuda_attention_backward(const Exec *exec, const AttentionBackward *p) {
    CudaDevice *d = exec->state;
    SdpaKey key;
    const SdpaPlan *plan = is_cudnn_backward(d, p, &key) ? sdpa_plan(d, &key) : NULL;
    if (plan && plan->plan)
        backward(exec, plan, p);
    else
        cuda_own_attention_backward(exec, p);
}

// ---- opening and closing ----------------------------------------------------------------------------------

// Finds the library if these options and this GPU want it; else, or where it is missing and nothing forces it, found
// is false and the message of fail() says why.
static Status find(const DeviceOptions *options, int major, Cudnn *cudnn, bool *found) {
    const bool forced = options->attention == ATTENTION_CUDNN;
    *found = false;
    if (!may_use_cudnn(options) || (!forced && !is_for_cudnn(major))) return OK;
    Status status = cudnn_load(cudnn);
    *found = status == OK;
    return status == ERR_UNAVAILABLE && !forced ? OK : status;
}

Status sdpa_open(CudaDevice *d, const DeviceOptions *options) {
    Cudnn cudnn;
    bool found;
    TRY(find(options, d->major, &cudnn, &found));
    if (!found) return OK;
    struct CudaSdpa *sdpa = d->sdpa = calloc(1, sizeof *sdpa);
    if (!sdpa) return fail(ERR_OS, "no memory for the attention of a device");
    *sdpa = (struct CudaSdpa){
        .cudnn = cudnn, .forced = options->attention == ATTENTION_CUDNN, .any_order = options->any_order};
    cudnnStatus_t status = cudnn.cudnnCreate(&sdpa->handle);
    return status ? cuda_fail(d, "cudnnCreate()", cudnn_error(&cudnn, status).text, ERR_OS) : OK;
}

void sdpa_close(CudaDevice *d) {
    struct CudaSdpa *sdpa = d->sdpa;
    if (!sdpa) return;
    while (sdpa->plans) {
        SdpaPlan *plan = sdpa->plans;
        sdpa->plans = plan->next;
        cudnn_graph_destroy(&plan->graph);
        free(plan);
    }
    if (sdpa->handle) sdpa->cudnn.cudnnDestroy(sdpa->handle);
    free(sdpa);
    d->sdpa = NULL;
}

// A library that is damaged is chosen, too: the device then says what is wrong when it is opened.
AttentionKernels cuda_choose_attention(const DeviceOptions *options) {
    Cudnn cudnn;
    bool found;
    const int major = gpu_major(options->rank_here);
    if (options->attention != ATTENTION_BY_GPU || !major) return options->attention;
    return find(options, major, &cudnn, &found) != OK || found ? ATTENTION_CUDNN_CHOSEN : ATTENTION_OWN;
}

void cuda_attention(const DeviceOptions *options, Text *out) {
    Cudnn cudnn;
    bool found;
    const int major = gpu_major(options->rank_here);
    Status status = find(options, major, &cudnn, &found);
    if (found)
        text_add(out, "by cuDNN %s, or by kernels of the program where it does not apply",
                 cudnn_version(&cudnn).text);
    else if (status == OK && may_use_cudnn(options) && is_for_cudnn(major))
        text_add(out, "by kernels of the program, which are slower on this GPU than cuDNN: %s",
                 fail_message());
    else
        text_add(out, "by kernels of the program");
}
