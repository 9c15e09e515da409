// The GPUs of the machine: whether there are any, which one a rank takes, what `trireme devices` says of them, and what
// a user can do when something is missing.
#include "device/cuda/cuda.h"
#include "device/cuda/cudnn.h"
#include "device/cuda/nccl_links.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// The first release of NVIDIA's driver for a major version of CUDA.
static const struct {
    int cuda;
    const char *release;
} RELEASES[] = {{12, "525"}, {13, "580"}};

static const char OTHERWISE[] = "--device cpu computes without a GPU";

// ---- versions ---------------------------------------------------------------------------------------------

static int major_of(int version) { return version / 1000; }
static int minor_of(int version) { return version % 1000 / 10; }

// 0: there is no driver.
static int driver_version(void) {
    int version = 0;
    if (cudaDriverGetVersion(&version) != cudaSuccess) cudaGetLastError();
    return version;
}

static int runtime_version(void) {
    int version = 0;
    if (cudaRuntimeGetVersion(&version) != cudaSuccess) cudaGetLastError();
    return version;
}

static const char *release_for(int version) {
    for (size_t i = 0; i < sizeof RELEASES / sizeof *RELEASES; i++)
        if (RELEASES[i].cuda == major_of(version)) return RELEASES[i].release;
    return "a later one";
}

// ---- what is missing --------------------------------------------------------------------------------------

static Status no_driver(void) {
    return fail(ERR_UNAVAILABLE,
                "--device " CUDA_KIND
                " needs NVIDIA's driver, and there is none here (no libcuda.so.1): install release %s "
                "or later; a container gets the driver from its host (docker run --gpus all); %s",
                release_for(runtime_version()), OTHERWISE);
}

static Status old_driver(int driver) {
    int runtime = runtime_version();
    return fail(
        ERR_UNAVAILABLE,
        "--device " CUDA_KIND " is built with CUDA %d.%d, and NVIDIA's driver here is too old for that: it "
        "knows CUDA up to %d.%d; install release %s of the driver or later, or build with an older CUDA toolkit; "
        "%s",
        major_of(runtime), minor_of(runtime), major_of(driver), minor_of(driver), release_for(runtime),
        OTHERWISE);
}

static Status no_gpu(cudaError_t error) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return fail(
        ERR_UNAVAILABLE,
        "--device " CUDA_KIND
        " needs an NVIDIA GPU, and the driver shows none (%s: %s; CUDA_VISIBLE_DEVICES is "
        "%s%s): nvidia-smi lists those of the machine, and a container or a job of Slurm has only those that it "
        "was given; %s",
        cudaGetErrorName(error), cudaGetErrorString(error), visible ? "set to " : "unset",
        !visible   ? ""
        : *visible ? visible
                   : "nothing",
        OTHERWISE);
}

static Status count_gpus(int *count) {
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return OK;
    cudaGetLastError();
    if (error == cudaSuccess) error = cudaErrorNoDevice;
    int driver = driver_version();
    if (!driver) return no_driver();
    if (error == cudaErrorInsufficientDriver) return old_driver(driver);
    return no_gpu(error);
}

Status gpus_available(void) {
    int count;
    return count_gpus(&count);
}

// Finds the kernels that the current GPU runs. Kernels for another GPU of its family run, too; else the driver
// translates PTX, if there is any.
static Status find_kernels(const struct cudaDeviceProp *properties, int number, char *kernels, size_t size) {
    int machine = 0, virtual = 0;
    cudaError_t error = probe_kernels(&machine, &virtual);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return fail(
            ERR_UNAVAILABLE,
            "GPU %d (%s) has compute capability %d.%d, and --device " CUDA_KIND
            " has no kernels for it (%s): it needs 8.0 or later; CUDA_VISIBLE_DEVICES chooses among several "
            "GPUs, and %s",
            number, properties->name, properties->major, properties->minor, cudaGetErrorName(error),
            OTHERWISE);
    }
    snprintf(kernels, size, machine == virtual ? "sm_%d" : "sm_%d, made by the driver from compute_%d",
             machine, virtual);
    return OK;
}

// ---- a rank's GPU -----------------------------------------------------------------------------------------

Status gpu_choose(CudaDevice *d, int rank_here) {
    int count;
    char kernels[64];
    struct cudaDeviceProp properties;
    TRY(count_gpus(&count));
    d->number = rank_here % count;
    TRY(CUDA_STATUS(d, cudaGetDeviceProperties(&properties, d->number)));
    snprintf(d->name, sizeof d->name, "%s", properties.name);
    d->major = properties.major;
    TRY(CUDA_STATUS(d, cudaSetDevice(d->number)));
    return find_kernels(&properties, d->number, kernels, sizeof kernels);
}

int gpu_major(int rank_here) {
    int count;
    struct cudaDeviceProp properties;
    if (count_gpus(&count) != OK) return 0;
    if (cudaGetDeviceProperties(&properties, rank_here % count) == cudaSuccess) return properties.major;
    cudaGetLastError();
    return 0;
}

// CUDA writes hexadecimal digits in capitals, Linux does not.
static bool find_pci(int number, char id[PCI_ID_BYTES]) {
    *id = 0;
    if (cudaDeviceGetPCIBusId(id, PCI_ID_BYTES, number) != cudaSuccess) {
        cudaGetLastError();
        *id = 0;
    }
    for (char *c = id; *c; c++) *c = (char)tolower((unsigned char)*c);
    return *id;
}

bool cuda_pci(int rank_here, char id[PCI_ID_BYTES]) {
    int count;
    return count_gpus(&count) == OK && find_pci(rank_here % count, id);
}

Status gpu_check_float8(const CudaDevice *d) {
    struct cudaDeviceProp properties;
    TRY(CUDA_STATUS(d, cudaGetDeviceProperties(&properties, d->number)));
    if (properties.major * 10 + properties.minor >= 89) return OK;
    return fail(
        ERR_UNAVAILABLE,
        "GPU %d (%s) has compute capability %d.%d, and --fp8-format needs 8.9 or later (Ada, Hopper, Blackwell): "
        "leave out --fp8-format and train in bf16; CUDA_VISIBLE_DEVICES chooses among several GPUs",
        d->number, d->name, properties.major, properties.minor);
}

void cuda_unit(void *state, DeviceUnit *unit) {
    const CudaDevice *d = state;
    struct cudaDeviceProp properties;
    CUDA(d, cudaGetDeviceProperties(&properties, d->number));
    memcpy(unit->id, properties.uuid.bytes, sizeof unit->id);
    snprintf(unit->name, sizeof unit->name, "GPU %d (%.100s)", d->number, d->name);
}

void gpu_out_of_memory(CudaDevice *d, cudaError_t error) {
    size_t free_bytes = 0, all_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &all_bytes) != cudaSuccess) cudaGetLastError();
    snprintf(
        d->why, sizeof d->why,
        "cudaMalloc on GPU %d, %s: %s; %.1f of its %.1f GiB are free: nvidia-smi shows the processes on it, "
        "`trireme memory` what each rank takes",
        d->number, d->name, cudaGetErrorString(error), (double)free_bytes / 0x1p30,
        (double)all_bytes / 0x1p30);
}

// ---- survey -----------------------------------------------------------------------------------------------

static void set_uuid(GpuSurvey *gpu, const cudaUUID_t *uuid) {
    size_t at = (size_t)snprintf(gpu->uuid, sizeof gpu->uuid, "GPU");
    for (int i = 0; i < 16; i++)
        at += (size_t)snprintf(gpu->uuid + at, sizeof gpu->uuid - at, "%s%02x",
                               i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                               (unsigned)(unsigned char)uuid->bytes[i]);
}

static void try_gpu(GpuSurvey *gpu, const struct cudaDeviceProp *properties) {
    size_t all_bytes;
    cudaError_t error = cudaSetDevice(gpu->number);
    if (error == cudaSuccess) error = cudaMemGetInfo(&gpu->free_bytes, &all_bytes);
    if (error == cudaSuccess) {
        if (find_kernels(properties, gpu->number, gpu->kernels, sizeof gpu->kernels) != OK) {
            snprintf(gpu->problem, sizeof gpu->problem, "%s", fail_message());
            return;
        }
        error = probe_run();
    }
    if (error == cudaSuccess) return;
    cudaGetLastError();
    snprintf(
        gpu->problem, sizeof gpu->problem,
        "a small kernel does not run on it (%s: %s); nvidia-smi shows the GPU's state and the processes on it, the "
        "kernel's log (dmesg) the driver's messages (Xid)",
        cudaGetErrorName(error), cudaGetErrorString(error));
}

static void survey_gpu(GpuSurvey *gpu, int number, bool tries) {
    struct cudaDeviceProp properties;
    *gpu = (GpuSurvey){.number = number};
    cudaError_t error = cudaGetDeviceProperties(&properties, number);
    if (error != cudaSuccess) {
        cudaGetLastError();
        snprintf(gpu->problem, sizeof gpu->problem, "the driver does not describe it (%s: %s)",
                 cudaGetErrorName(error), cudaGetErrorString(error));
        return;
    }
    snprintf(gpu->name, sizeof gpu->name, "%.120s", properties.name);
    set_uuid(gpu, &properties.uuid);
    gpu->major = properties.major, gpu->minor = properties.minor;
    gpu->multiprocessors = properties.multiProcessorCount;
    gpu->memory_bytes = properties.totalGlobalMem;
    find_pci(number, gpu->pci);
    if (tries) try_gpu(gpu, &properties);
}

static void survey_driver(LibrarySurvey *library) {
    int version = driver_version();
    *library = (LibrarySurvey){.name = "NVIDIA driver",
                               .file = "libcuda.so.1",
                               .needed_for = "everything",
                               .install = "NVIDIA's driver brings it; a container gets it from its host",
                               .found = version > 0};
    if (version)
        snprintf(library->version, sizeof library->version, "CUDA %d.%d", major_of(version),
                 minor_of(version));
}

static void survey_cudnn(LibrarySurvey *library) {
    Cudnn cudnn;
    *library = (LibrarySurvey){.name = CUDNN_NAME,
                               .file = CUDNN_FILE,
                               .needed_for = "faster attention",
                               .install = CUDNN_INSTALL,
                               .found = cudnn_load(&cudnn) == OK};
    if (library->found) snprintf(library->version, sizeof library->version, "%s", cudnn_version(&cudnn).text);
}

void cuda_survey(DeviceSurvey *survey, bool tries) {
    int version = runtime_version(), count;
    survey->has_gpus = true;
    snprintf(survey->runtime, sizeof survey->runtime, "CUDA %d.%d", major_of(version), minor_of(version));
    survey_driver(&survey->libraries[survey->num_libraries++]);
    survey_cudnn(&survey->libraries[survey->num_libraries++]);
    nccl_survey(&survey->libraries[survey->num_libraries++]);
    if (count_gpus(&count) != OK) return;
    survey->num_gpus = count < MAX_GPUS ? count : MAX_GPUS;
    for (int i = 0; i < survey->num_gpus; i++) survey_gpu(&survey->gpus[i], i, tries);
}

// Another release of cuDNN may compute other bits.
static void add_cudnn(Text *out) {
    Cudnn cudnn;
    if (cudnn_load(&cudnn) == OK)
        text_add(out, ", cuDNN %s", cudnn_version(&cudnn).text);
    else
        text_add(out, ", no cuDNN");
}

// Names each kind of GPU once: machines may have different numbers of them.
void cuda_arithmetic(Text *out) {
    struct cudaDeviceProp of[MAX_GPUS];
    int version = runtime_version(), count, kinds = 0;
    text_add(out, "CUDA %d.%d on", major_of(version), minor_of(version));
    if (count_gpus(&count) != OK) count = 0;
    for (int i = 0; i < count && i < MAX_GPUS; i++) {
        int same = 0;
        if (cudaGetDeviceProperties(&of[kinds], i) != cudaSuccess) continue;
        while (strcmp(of[same].name, of[kinds].name) ||
               of[same].multiProcessorCount != of[kinds].multiProcessorCount)
            same++;
        if (same < kinds) continue;
        text_add(out, "%s %s (compute capability %d.%d, %d multiprocessors)", kinds ? "," : "",
                 of[kinds].name, of[kinds].major, of[kinds].minor, of[kinds].multiProcessorCount);
        kinds++;
    }
    if (!kinds) text_add(out, " no GPU");
    add_cudnn(out);
}
