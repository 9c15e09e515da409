// Stands for nccl.c where the program is built without NCCL's header: it says what is missing.
#include "device/cuda/nccl_links.h"

static const char INSTALL[] =
    "NVIDIA's package libnccl-dev or the Python wheel nvidia-nccl-cu13 brings its header; then "
    "build trireme again";

static Status absent_check(void *state) {
    (void)state;
    return fail(ERR_UNAVAILABLE,
                "--device " CUDA_KIND
                " was built without NCCL, as there was no nccl.h: %s; --device-transport staged "
                "needs none",
                INSTALL);
}

const LinkBackend nccl_links = {.check = absent_check};

void nccl_survey(LibrarySurvey *library) {
    *library = (LibrarySurvey){
        .name = "NCCL", .file = "libnccl.so.2", .needed_for = "ranks that are processes", .install = INSTALL};
}
