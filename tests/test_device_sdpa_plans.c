// NVIDIA's own cuDNN, where it is installed, makes a plan of each of the program's graphs of attention, for GPUs that are
// described to it in words, and wants no more workspace than is set aside. No GPU and no driver is needed: fake_libcuda.c
// stands in for the latter. Without cuDNN the test is skipped (77).
//
// A plan takes half a second. TRIREME_TEST_PLANS=all makes every one of them.
#include "device/cuda/sdpa_graph.h"
#include "harness.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Cudnn cudnn;

// What cuDNN asks a driver for. The last three are asked for by 9.28.
static const char PROPERTIES[] =
    "{\"cudaDeviceId\":0,\"deviceName\":\"%s\",\"deviceVer\":%d,\"driverVer\":13000,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
    "\"multiProcessorCount\":%d,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":%d,"
    "\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"totalGlobalMem\":85899345920,\"smCountOrigin\":0,\"oversizedSharedMemoryPerBlock\":0,"
    "\"memoryBusWidth\":6144}";

typedef struct {
    const char *name;
    int capability, multiprocessors, l2_bytes, shared_bytes;
} Words;

static const Words GPUS[] = {{"NVIDIA H200", 900, 132, 62914560, 232448},
                             {"NVIDIA A100-SXM4-80GB", 800, 108, 41943040, 166912},
                             {"NVIDIA B200", 1000, 148, 62914560, 232448}};
enum { NUM_GPUS = sizeof GPUS / sizeof *GPUS };

static void expect_plan(const Words *gpu, const SdpaKey *key) {
    CudnnGraph graph = {.cudnn = &cudnn};
    char json[1024], what[160];
    int64_t bytes = -1;
    snprintf(json, sizeof json, PROPERTIES, gpu->name, gpu->capability, gpu->multiprocessors, gpu->l2_bytes,
             gpu->shared_bytes);
    sdpa_describe(key, what, sizeof what);
    CudnnNode properties = cudnn_properties(&graph, json);
    sdpa_build(&graph, key);
    const bool has_plan = cudnn_plan(&graph, NULL, properties, &bytes) != NULL;
    EXPECT(has_plan, "%s%s: %s: %s, %s", what, key->any_order ? ", any order" : "", gpu->name, graph.call,
           graph.error.text);
    if (has_plan)
        EXPECT((size_t)bytes <= sdpa_room(key, false).engine_bytes,
               "%s%s: %s: %lld bytes of workspace, not %zu", what, key->any_order ? ", any order" : "",
               gpu->name, (long long)bytes, sdpa_room(key, false).engine_bytes);
    cudnn_graph_destroy(&graph);
}

static bool all_plans(void) {
    const char *plans = getenv("TRIREME_TEST_PLANS");
    return plans && !strcmp(plans, "all");
}

// GPT-2 124M, Llama 3 8B, and a small one with nothing round about it.
static void plans_of_hopper(void) {
    static const SdpaKey keys[] = {{192, 1, 1024, 64, BF16, false, false},
                                   {192, 1, 1024, 64, BF16, true, false},
                                   {16, 4, 4096, 128, BF16, true, false},
                                   {6, 3, 67, 24, F16, true, false},
                                   {16, 4, 4096, 128, BF16, true, true}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) expect_plan(&GPUS[0], &keys[i]);
}

static void every_plan(void) {
    static const SdpaKey shapes[] = {
        {192, 1, 1024, 64, BF16, false, false}, {200, 1, 1024, 64, BF16, false, false},
        {64, 1, 2048, 128, BF16, false, false}, {16, 4, 4096, 128, BF16, false, false},
        {8, 4, 8192, 128, BF16, false, false},  {4, 32, 2048, 64, BF16, false, false},
        {6, 1, 37, 8, F16, false, false},       {1, 4, 130, 16, F16, false, false},
        {4, 2, 67, 24, BF16, false, false},     {2, 1, 1000, 64, F16, false, false},
        {1, 2, 200, 128, BF16, false, false},   {1, 1, 2, 8, BF16, false, false},
        {6, 3, 1030, 96, F16, false, false},    {1, 1, 131, 64, BF16, false, false},
        {3, 1, 257, 40, BF16, false, false},    {2, 5, 300, 112, F16, false, false}};
    for (int gpu = 0; gpu < NUM_GPUS && all_plans(); gpu++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int way = 0; way < 3; way++) {
                SdpaKey key = shapes[i];
                key.backward = way > 0, key.any_order = way > 1;
                expect_plan(&GPUS[gpu], &key);
            }
}

// A graph that is none, so that what is accepted above says something.
static void what_is_no_attention_has_no_plan(void) {
    CudnnGraph graph = {.cudnn = &cudnn};
    const CudnnShape shape = {{1, 1, 8, 8}, {64, 64, 8, 1}}, other = {{1, 1, 8, 24}, {192, 192, 24, 1}};
    cudnn_matmul(&graph, cudnn_tensor(&graph, CUDNN_DATA_BFLOAT16, shape, SDPA_QUERIES),
                 cudnn_tensor(&graph, CUDNN_DATA_BFLOAT16, other, SDPA_KEYS),
                 cudnn_tensor(&graph, CUDNN_DATA_BFLOAT16, shape, SDPA_OUT));
    int64_t bytes;
    EXPECT(!cudnn_plan(&graph, NULL, NULL, &bytes) && graph.status && *graph.error.text, "a plan of nothing");
    cudnn_graph_destroy(&graph);
}

int main(int argc, char **argv) {
    setenv("TRIREME_CUDA_LIBS", CUDNN_FOLDER, 0);
    if (!dlopen(FAKE_LIBCUDA, RTLD_NOW | RTLD_GLOBAL)) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (cudnn_load(&cudnn) != OK) {
        printf("skipped: %s\n", fail_message());
        return 77;
    }
    return harness_run((const Test[]){{"plans_of_hopper", plans_of_hopper},
                                      {"every_plan", every_plan},
                                      {"what_is_no_attention_has_no_plan", what_is_no_attention_has_no_plan},
                                      {0}},
                       argc, argv);
}
