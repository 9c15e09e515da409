// The survey of a machine for a kind of device: its GPUs, the versions of CUDA, and libraries. `trireme devices` prints
// it, and the ranks of a job compare it.
#pragma once
#include "base/pci.h"
#include "device/device.h"

enum { MAX_GPUS = 64, MAX_LIBRARIES = 8 };

typedef struct {
    int number; // CUDA's: CUDA_VISIBLE_DEVICES leaves out other GPUs, and may change the order
    char name[128];
    char uuid[48];    // as nvidia-smi prints it
    int major, minor; // compute capability
    int multiprocessors;
    size_t memory_bytes;
    char pci[PCI_ID_BYTES]; // "": unknown
    // Where it is in the machine (survey_place).
    int node;          // of NUMA; -1: unknown
    char cores[512];   // that are near it, "0-31"; "": unknown
    char network[256]; // the network interfaces that are nearest to it, "mlx5_0, eth1"; "": unknown
    PciNearness network_near;
    // The rest only where the GPUs are tried.
    size_t free_bytes;
    char kernels[64];  // which kernels it runs, for messages: "sm_90"
    char problem[512]; // why it cannot be used; "": it can
} GpuSurvey;

// A library that the device finds when it is opened.
typedef struct {
    const char *name, *file; // "NVIDIA driver", "libcuda.so.1"
    const char *needed_for;  // "all of it"
    const char *install;     // what to do where it is missing: "NVIDIA's driver brings it"
    bool found;
    char version[64]; // "": unknown
} LibrarySurvey;

typedef struct {
    bool has_gpus;    // false: the kind computes on the CPU, and nothing below is set
    char runtime[32]; // the version of CUDA that the module is built with
    GpuSurvey gpus[MAX_GPUS];
    int num_gpus;
    LibrarySurvey libraries[MAX_LIBRARIES];
    int num_libraries;
} DeviceSurvey;

// Sets where a GPU is, by its `pci`. `sysfs` is SYSFS, or laid out like it.
void survey_place(GpuSurvey *gpu, const char *sysfs);

// Says what there is for devices of a kind. With `tries` each GPU also runs a small kernel and tells its free memory,
// which takes some tenths of a second and some hundred MB of its memory until the process ends. Returns what
// device_check does, with the message of what is missing; the survey then holds what could be found.
// `module`: gets the path of the kind's module; empty: it has none, or none was found.
Status device_survey(const char *kind, bool tries, DeviceSurvey *survey, Text *module);
