// Modules of devices: which file is loaded, and what is said when there is none that fits.
#include "device/device.h"
#include "harness.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char FILE_NAME[] = "trireme_cuda_sim.so";

// The simulated GPU needs no toolkit, so every build has it: the tests that use it are not skipped.
static void simulated_gpu_is_available(void) {
    EXPECT_OK(device_check("cuda-sim"));
    Device *device;
    EXPECT_OK(device_open(&device, (DeviceOptions){.kind = "cuda-sim", .threads = 1}));
    device_close(device);
}

// A null device loads the module, which says how much workspace an operation needs.
static void null_stands_for_a_module(void) {
    Device *device;
    DeviceOptions options = {.kind = "null", .stands_for = "cuda-sim", .threads = 1};
    EXPECT_OK(device_open(&device, options));
    device_close(device);
}

// Of the folder that TRIREME_CUDA names.
static void expect_refusal(Status wanted, const char *words) {
    Device *device;
    setenv("TRIREME_CUDA", harness_folder(), 1);
    EXPECT(device_check("cuda-sim") == wanted, "the status of the check");
    EXPECT(device_open(&device, (DeviceOptions){.kind = "cuda-sim", .threads = 1}) == wanted, "the status");
    EXPECT(!device, "a device");
    EXPECT(strstr(fail_message(), words), "\"%s\" in: %s", words, fail_message());
    EXPECT(strstr(fail_message(), harness_folder()), "the folder in: %s", fail_message());
    unsetenv("TRIREME_CUDA");
    unlink(harness_path(FILE_NAME));
}

static void missing_file(void) {
    expect_refusal(ERR_UNAVAILABLE, "--device cuda-sim needs the file trireme_cuda_sim.so");
    expect_refusal(ERR_UNAVAILABLE, "this builds it: cmake --build ");
}

static void damaged_file(void) {
    FILE *file = fopen(harness_path(FILE_NAME), "w");
    CHECK(file, "no file");
    fputs("\177ELF and nothing more\n", file);
    fclose(file);
    expect_refusal(ERR_DATA, "the module cannot be loaded");
}

static void other_build(void) {
    CHECK(symlink(OTHER_MODULE, harness_path(FILE_NAME)) == 0, "no link");
    expect_refusal(ERR_DATA, "belongs to another build of trireme (interface 0123456789abcdef");
}

// It is left to the next test to find a module beside the program again.
static void folder_of_the_module(void) {
    char own[4096];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    CHECK(length > 0, "no program");
    own[length] = 0;
    for (int i = 0; i < 2; i++) *strrchr(own, '/') = 0;
    setenv("TRIREME_CUDA", own, 1);
    EXPECT_OK(device_check("cuda-sim"));
    unsetenv("TRIREME_CUDA");
    EXPECT_OK(device_check("cuda-sim"));
}

static void unknown_kind_names_all(void) {
    EXPECT(device_check("cuda-simm") == ERR_CONFIG, "the status");
    EXPECT(
        strstr(fail_message(), "null, cuda, cuda-check, cuda-sim and cuda-sim-check: did you mean cuda-sim?"),
        "%s", fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"simulated_gpu_is_available", simulated_gpu_is_available},
                                      {"null_stands_for_a_module", null_stands_for_a_module},
                                      {"missing_file", missing_file},
                                      {"damaged_file", damaged_file},
                                      {"other_build", other_build},
                                      {"folder_of_the_module", folder_of_the_module},
                                      {"unknown_kind_names_all", unknown_kind_names_all},
                                      {0}},
                       argc, argv);
}
