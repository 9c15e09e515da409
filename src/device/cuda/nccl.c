// Links between GPUs (device/links.h) by NVIDIA's NCCL: its functions, and communicators that never block the host.
#include "device/cuda/libraries.h"
#include "device/cuda/nccl_links.h"
#include <limits.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

// ---- the library ------------------------------------------------------------------------------------------

#define FUNCTIONS(X)                                                                                         \
    X(ncclGetVersion)                                                                                        \
    X(ncclGetErrorString)                                                                                    \
    X(ncclGetLastError)                                                                                      \
    X(ncclGetUniqueId)                                                                                       \
    X(ncclCommInitRankConfig)                                                                                \
    X(ncclCommGetAsyncError)                                                                                 \
    X(ncclCommFinalize)                                                                                      \
    X(ncclCommDestroy)                                                                                       \
    X(ncclCommAbort)                                                                                         \
    X(ncclGroupStart)                                                                                        \
    X(ncclGroupEnd)                                                                                          \
    X(ncclSend)                                                                                              \
    X(ncclRecv)                                                                                              \
    X(ncclAllGather)                                                                                         \
    X(ncclBroadcast)                                                                                         \
    X(ncclAllReduce)                                                                                         \
    X(ncclReduceScatter)

// Pointers to the functions, of the types in the library's header.
typedef struct {
#define X(name) __typeof__(name) *name;
    FUNCTIONS(X)
#undef X
} NcclFunctions;

#define X(name) #name,
static const char *const FUNCTION_NAMES[] = {FUNCTIONS(X)};
#undef X
enum { NUM_FUNCTIONS = sizeof FUNCTION_NAMES / sizeof *FUNCTION_NAMES };
_Static_assert(sizeof(NcclFunctions) == NUM_FUNCTIONS * sizeof(void *), "library_load fills it");

static const char INSTALL[] = "NVIDIA's package libnccl2 or the Python wheel nvidia-nccl-cu13 brings it";
static const CudaLibrary LIBRARY = {
    .name = "NCCL",
    .file = "libnccl.so.2",
    .install = INSTALL,
    .functions = FUNCTION_NAMES,
    .num_functions = NUM_FUNCTIONS,
};

// The first version whose communicators can be told how much of a GPU they may take, as links are; of the header, too.
enum { OLDEST = 21800 };

typedef struct {
    CudaDevice *device;
    NcclFunctions nccl;
    ncclComm_t comm;
} CudaLink;

static void write_version(int version, char text[32]) {
    snprintf(text, 32, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static Status load_functions(NcclFunctions *functions) {
    void *found[NUM_FUNCTIONS];
    TRY(library_load(&LIBRARY, found));
    memcpy(functions, found, sizeof found);
    return OK;
}

// Loads the library, and returns its version.
static Status load(NcclFunctions *functions, int *version) {
    char text[32];
    TRY(load_functions(functions));
    ncclResult_t result = functions->ncclGetVersion(version);
    if (result != ncclSuccess)
        return fail(ERR_OS, "ncclGetVersion failed: %s", functions->ncclGetErrorString(result));
    if (*version >= OLDEST) return OK;
    write_version(*version, text);
    return fail(ERR_DATA,
                "--device " CUDA_KIND
                " needs NCCL 2.18 or later, and %s is version %s; %s, and TRIREME_CUDA_LIBS "
                "can name its folder",
                LIBRARY.file, text, INSTALL);
}

static Status nccl_check(void *state) {
    NcclFunctions functions;
    int version;
    (void)state;
    return load(&functions, &version);
}

static Status nccl_version(void *state, char text[32]) {
    NcclFunctions functions;
    int version;
    (void)state;
    TRY(load(&functions, &version));
    write_version(version, text);
    return OK;
}

void nccl_survey(LibrarySurvey *library) {
    NcclFunctions functions;
    int version;
    *library = (LibrarySurvey){.name = LIBRARY.name,
                               .file = LIBRARY.file,
                               .needed_for = "ranks that are processes",
                               .install = INSTALL};
    if (load_functions(&functions) != OK || functions.ncclGetVersion(&version) != ncclSuccess) return;
    library->found = true;
    write_version(version, library->version);
}

// ---- errors -----------------------------------------------------------------------------------------------

typedef struct {
    char text[512];
} NcclWords;

static NcclWords words_of(const NcclFunctions *nccl, ncclComm_t comm, ncclResult_t result) {
    NcclWords words;
    const char *more = nccl->ncclGetLastError(comm);
    snprintf(words.text, sizeof words.text,
             "%s%s%.400s; NCCL_DEBUG=WARN in the environment lets NCCL say more",
             nccl->ncclGetErrorString(result), more && *more ? ": " : "", more ? more : "");
    return words;
}

// The call may not be done yet.
static bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

static void check(const CudaLink *link, const char *call, ncclResult_t result) {
    if (is_error(result))
        cuda_fault(link->device, call, words_of(&link->nccl, link->comm, result).text, ERR_OS);
}

// A call of NCCL; the job ends if it fails.
#define NCCL(link, call) check(link, #call, (link)->nccl.call)

// ---- communicators ----------------------------------------------------------------------------------------

static Status nccl_new_id(void *state, LinkId *id) {
    NcclFunctions nccl;
    ncclUniqueId unique;
    _Static_assert(sizeof unique == sizeof *id, "an id of a link is one of NCCL");
    TRY(load_functions(&nccl));
    ncclResult_t result = nccl.ncclGetUniqueId(&unique);
    if (result != ncclSuccess)
        return cuda_fail(state, "ncclGetUniqueId()", words_of(&nccl, NULL, result).text, ERR_OS);
    memcpy(id, &unique, sizeof *id);
    return OK;
}

// Headers before NCCL 2.27 have no such member, and the library then makes a name of its own.
static void set_name(ncclConfig_t *config, const char *name) {
#if NCCL_VERSION_CODE >= 22700
    config->commName = name;
#else
    (void)config, (void)name;
#endif
}

static Status create(CudaLink *link, const LinkSpec *spec) {
    ncclUniqueId unique;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    memcpy(&unique, &spec->id, sizeof unique);
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = spec->max_blocks;
    set_name(&config, spec->name);
    TRY(load_functions(&link->nccl));
    ncclResult_t result =
        link->nccl.ncclCommInitRankConfig(&link->comm, spec->size, unique, spec->rank, &config);
    if (!is_error(result)) return OK;
    return cuda_fail(link->device, "ncclCommInitRankConfig()", words_of(&link->nccl, link->comm, result).text,
                     ERR_OS);
}

static Status nccl_open(void *state, const LinkSpec *spec, void **link) {
    CudaLink *l = calloc(1, sizeof *l);
    if (!l) return fail(ERR_OS, "no memory for a communicator of NCCL");
    l->device = state;
    Status status = create(l, spec);
    if (status == OK)
        *link = l;
    else
        free(l);
    return status;
}

static Status nccl_ready(void *link, bool *ready) {
    CudaLink *l = link;
    ncclResult_t now, result = l->nccl.ncclCommGetAsyncError(l->comm, &now);
    if (result == ncclSuccess) result = now;
    *ready = result == ncclSuccess;
    if (!is_error(result)) return OK;
    return cuda_fail(l->device, "a communicator of NCCL()", words_of(&l->nccl, l->comm, result).text, ERR_OS);
}

static void nccl_close(void *link) {
    CudaLink *l = link;
    NCCL(l, ncclCommFinalize(l->comm));
}

static void nccl_destroy(void *link, bool aborts) {
    CudaLink *l = link;
    if (aborts)
        l->nccl.ncclCommAbort(l->comm);
    else
        NCCL(l, ncclCommDestroy(l->comm));
    free(l);
}

// ---- operations -------------------------------------------------------------------------------------------

static void nccl_begin(void *link) {
    CudaLink *l = link;
    NCCL(l, ncclGroupStart());
}

static void nccl_end(void *link) {
    CudaLink *l = link;
    NCCL(l, ncclGroupEnd());
}

static ncclDataType_t type_of(DType dtype) {
    switch (dtype) {
    case F32: return ncclFloat32;
    case F64: return ncclFloat64;
    case BF16: return ncclBfloat16;
    case F16: return ncclFloat16;
    case I32: return ncclInt32;
    default: break;
    }
    CHECK(false, "tensors of type %d between ranks", (int)dtype);
}

static void nccl_run(void *link, const Exec *exec, const LinkCall *c) {
    CudaLink *l = link;
    const ncclDataType_t type = type_of(c->dtype);
    const ncclRedOp_t sum = c->reduce == REDUCE_MAX ? ncclMax : ncclSum;
    cudaStream_t stream = stream_of(exec);
    switch (c->op) {
    case LINK_SEND: NCCL(l, ncclSend(c->in, c->count, type, c->peer, l->comm, stream)); return;
    case LINK_RECEIVE: NCCL(l, ncclRecv(c->out, c->count, type, c->peer, l->comm, stream)); return;
    case LINK_GATHER: NCCL(l, ncclAllGather(c->in, c->out, c->count, type, l->comm, stream)); return;
    case LINK_BROADCAST:
        NCCL(l, ncclBroadcast(c->in, c->out, c->count, type, c->peer, l->comm, stream));
        return;
    case LINK_ALL_REDUCE: NCCL(l, ncclAllReduce(c->in, c->out, c->count, type, sum, l->comm, stream)); return;
    case LINK_REDUCE_SCATTER:
        NCCL(l, ncclReduceScatter(c->in, c->out, c->count, type, sum, l->comm, stream));
        return;
    }
}

const LinkBackend nccl_links = {.check = nccl_check,
                                .version = nccl_version,
                                .new_id = nccl_new_id,
                                .open = nccl_open,
                                .ready = nccl_ready,
                                .close = nccl_close,
                                .destroy = nccl_destroy,
                                .begin = nccl_begin,
                                .end = nccl_end,
                                .run = nccl_run};
